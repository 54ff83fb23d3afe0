BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0002');
CREATE TABLE clients (
	client_id VARCHAR(200) NOT NULL, 
	node_name TEXT NOT NULL, 
	public_key_hex TEXT NOT NULL, 
	online BOOLEAN NOT NULL, 
	last_seen DATETIME, 
	PRIMARY KEY (client_id)
);
INSERT INTO "clients" VALUES('hospital-0','hospital-0','04ab',1,'2026-03-01 12:01:30.123456');
INSERT INTO "clients" VALUES('hospital-1','','',1,'2026-03-01 12:01:30.123456');
INSERT INTO "clients" VALUES('hospital-2','','',0,NULL);
CREATE TABLE "events" (
	sequence INTEGER NOT NULL, 
	request_number INTEGER NOT NULL, 
	kind VARCHAR(100) NOT NULL, 
	from_status VARCHAR(20), 
	to_status VARCHAR(20), 
	actor VARCHAR(200) NOT NULL, 
	detail JSON NOT NULL, 
	at DATETIME NOT NULL, 
	previous_hash VARCHAR(64) NOT NULL, 
	hash VARCHAR(64) NOT NULL, 
	PRIMARY KEY (sequence), 
	FOREIGN KEY(request_number) REFERENCES requests (number)
);
INSERT INTO "events" VALUES(1,1,'submitted',NULL,NULL,'ada','{"last_round_sequence": 1}','2026-03-01 12:02:30.123456','0000000000000000000000000000000000000000000000000000000000000000','12e43eb17f2d1f7ab7d4dd8119470ca8c251c15a2ebbd6e1bab8362191df4baf');
INSERT INTO "events" VALUES(2,1,'moved','received','scheduled','hospital-server:4711 run 17','{}','2026-03-01 12:03:00.123456','12e43eb17f2d1f7ab7d4dd8119470ca8c251c15a2ebbd6e1bab8362191df4baf','62544e9e1eedd1b5c46c553d195c356f4a6c20f3d719e6ef43d177da88b7c3a4');
INSERT INTO "events" VALUES(3,1,'moved','scheduled','unlearning','hospital-server:4711 run 17','{}','2026-03-01 12:03:30.123456','62544e9e1eedd1b5c46c553d195c356f4a6c20f3d719e6ef43d177da88b7c3a4','abd0bc7c8400c4e8a344fbf6d6401a453ecb9f1c2e07e15037f94ec06b3f9a5b');
INSERT INTO "events" VALUES(4,1,'moved','unlearning','recovering','hospital-server:4711 run 17','{}','2026-03-01 12:04:00.123456','abd0bc7c8400c4e8a344fbf6d6401a453ecb9f1c2e07e15037f94ec06b3f9a5b','d472896ddc2bebf61fc8658dedb7bd2b42279d59daaa5107ea15a66518f48e82');
INSERT INTO "events" VALUES(5,1,'moved','recovering','verifying','hospital-server:4711 run 17','{}','2026-03-01 12:04:30.123456','d472896ddc2bebf61fc8658dedb7bd2b42279d59daaa5107ea15a66518f48e82','3d888b2e395c3d043b984be2c7e3cc3a8902ac0f33a298d29d883a9caca8d8f8');
INSERT INTO "events" VALUES(6,1,'moved','verifying','completed','hospital-server:4711 run 17','{"certificate_sha256": "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"}','2026-03-01 12:05:00.123456','3d888b2e395c3d043b984be2c7e3cc3a8902ac0f33a298d29d883a9caca8d8f8','9f5db0e3c4589bc6baeec3efaf99e78420cc14f460ab26631e1578918298ab45');
INSERT INTO "events" VALUES(7,2,'submitted',NULL,NULL,'ada','{"last_round_sequence": 2}','2026-03-01 12:06:00.123456','9f5db0e3c4589bc6baeec3efaf99e78420cc14f460ab26631e1578918298ab45','4fa23b980979acbb19a1023c1572de87be3ed850c58d69f8b626e8f280cd15a4');
INSERT INTO "events" VALUES(8,2,'moved','received','scheduled','hospital-server:4711 run 17','{}','2026-03-01 12:06:30.123456','4fa23b980979acbb19a1023c1572de87be3ed850c58d69f8b626e8f280cd15a4','07291c055ed6b0101cd83585350826eee3ae226b094b637dfafa586145ada963');
INSERT INTO "events" VALUES(9,2,'moved','scheduled','unlearning','hospital-server:4711 run 17','{}','2026-03-01 12:07:00.123456','07291c055ed6b0101cd83585350826eee3ae226b094b637dfafa586145ada963','59db1f7d3eb905f37c3de1f44d682167ba89fd101948895c33caf4b686c13b8a');
INSERT INTO "events" VALUES(10,2,'moved','unlearning','recovering','hospital-server:4711 run 17','{}','2026-03-01 12:07:30.123456','59db1f7d3eb905f37c3de1f44d682167ba89fd101948895c33caf4b686c13b8a','a75f5b0d54155ed1276769a2b095a42020425f3a57d2cb6bf86b0f47c0a1ce7f');
INSERT INTO "events" VALUES(11,2,'moved','recovering','verifying','hospital-server:4711 run 17','{}','2026-03-01 12:08:00.123456','a75f5b0d54155ed1276769a2b095a42020425f3a57d2cb6bf86b0f47c0a1ce7f','06b5fb14960d260d0e8b1420b2dfe6256cc906f49e06b33a97352d0b535f7671');
INSERT INTO "events" VALUES(12,2,'moved','verifying','completed','hospital-server:4711 run 17','{}','2026-03-01 12:08:30.123456','06b5fb14960d260d0e8b1420b2dfe6256cc906f49e06b33a97352d0b535f7671','2cd01f43324752e3e43928447704f057a5d4d78f2c6d4cea1c177981c91343c4');
INSERT INTO "events" VALUES(13,3,'submitted',NULL,NULL,'hospital-2','{"last_round_sequence": 2}','2026-03-01 12:09:00.123456','2cd01f43324752e3e43928447704f057a5d4d78f2c6d4cea1c177981c91343c4','cea63942bbea8d2848dde9934df06a7a271cff97ab93d8e413eb126849d96fb9');
INSERT INTO "events" VALUES(14,3,'moved','received','cancelled','hospital-2','{}','2026-03-01 12:09:30.123456','cea63942bbea8d2848dde9934df06a7a271cff97ab93d8e413eb126849d96fb9','198d5235fec38cc9e02e19241b2e4a8471217e0b036105b0d76197954943c49a');
INSERT INTO "events" VALUES(15,4,'submitted',NULL,NULL,'ada','{"last_round_sequence": 2}','2026-03-01 12:10:00.123456','198d5235fec38cc9e02e19241b2e4a8471217e0b036105b0d76197954943c49a','22d27afe25a3257ddba5be09b31a3b1a6fe17ee1302fb863e1857c7913c131d1');
INSERT INTO "events" VALUES(16,4,'moved','received','failed','hospital-server:4711 run 17','{"reason": "client hospital-2: no answer"}','2026-03-01 12:10:30.123456','22d27afe25a3257ddba5be09b31a3b1a6fe17ee1302fb863e1857c7913c131d1','b99b4957c564a79e0abbeeb8c49f0a6290cd8dc259d0e5abc67e03c40e8ce57b');
INSERT INTO "events" VALUES(17,5,'submitted',NULL,NULL,'ada','{"last_round_sequence": 2}','2026-03-01 12:11:00.123456','b99b4957c564a79e0abbeeb8c49f0a6290cd8dc259d0e5abc67e03c40e8ce57b','a2e05cbb1f3999c7c20f7e83cbfd19708b83bbe1910d23b87bd5a39957894751');
INSERT INTO "events" VALUES(18,5,'moved','received','scheduled','hospital-server:4711 run 17','{}','2026-03-01 12:11:30.123456','a2e05cbb1f3999c7c20f7e83cbfd19708b83bbe1910d23b87bd5a39957894751','07a96b404b519ac7dc13467091e63991af9a38bd72758a74071fc28d3bd49f1c');
INSERT INTO "events" VALUES(19,5,'moved','scheduled','failed','hospital-server:4711 run 17','{"reason": "the ids are unknown"}','2026-03-01 12:12:00.123456','07a96b404b519ac7dc13467091e63991af9a38bd72758a74071fc28d3bd49f1c','07c63ad2051a1dfe65577bdf726bc7625c85689f43ae5ca11e9c889af8dbbd6c');
INSERT INTO "events" VALUES(20,6,'submitted',NULL,NULL,'ada','{"last_round_sequence": 2}','2026-03-01 12:12:30.123456','07c63ad2051a1dfe65577bdf726bc7625c85689f43ae5ca11e9c889af8dbbd6c','7f44fac3b39730a2862b9746268b8d4eb09da158918c7556ed7ca1e02a7209af');
INSERT INTO "events" VALUES(21,6,'moved','received','scheduled','hospital-server:4711 run 17','{}','2026-03-01 12:13:00.123456','7f44fac3b39730a2862b9746268b8d4eb09da158918c7556ed7ca1e02a7209af','80688946e9bacf010a53d3a687b30539518b8e317164a9250df7f1db2f34ae1d');
INSERT INTO "events" VALUES(22,6,'moved','scheduled','unlearning','hospital-server:4711 run 17','{}','2026-03-01 12:13:30.123456','80688946e9bacf010a53d3a687b30539518b8e317164a9250df7f1db2f34ae1d','6059a44d91b5c5f2f023279fcbd52cb3695ef705a908dde288fca87b8455d056');
INSERT INTO "events" VALUES(23,6,'moved','unlearning','recovering','hospital-server:4711 run 17','{}','2026-03-01 12:14:00.123456','6059a44d91b5c5f2f023279fcbd52cb3695ef705a908dde288fca87b8455d056','f3d6d8371642b42acc99fb547cdf39b51f2f2a5acc52574a94eb83ad64ed5d41');
INSERT INTO "events" VALUES(24,7,'submitted',NULL,NULL,'site of client hospital-0','{"last_round_sequence": 2}','2026-03-01 12:14:30.123456','f3d6d8371642b42acc99fb547cdf39b51f2f2a5acc52574a94eb83ad64ed5d41','249c5e796b45f5cd8b56f480c6721d8c34314d537290ea162a29022c07a19a41');
INSERT INTO "events" VALUES(25,7,'moved','received','scheduled','hospital-server:4711 run 17','{}','2026-03-01 12:15:00.123456','249c5e796b45f5cd8b56f480c6721d8c34314d537290ea162a29022c07a19a41','023d24baeefff832a33ccd92b4be1168a878c8c5ca7eb5661e2eea5c644e790d');
INSERT INTO "events" VALUES(26,7,'waiting',NULL,NULL,'hospital-server:4711 run 17','{"text": "waiting for client hospital-0"}','2026-03-01 12:15:30.123456','023d24baeefff832a33ccd92b4be1168a878c8c5ca7eb5661e2eea5c644e790d','dc8296d83892b61d3585fb89540d09d2665dc3e59114255b4fcb5b799be68af9');
CREATE TABLE exclusions (
	request_number INTEGER NOT NULL, 
	at DATETIME NOT NULL, 
	PRIMARY KEY (request_number), 
	FOREIGN KEY(request_number) REFERENCES requests (number)
);
INSERT INTO "exclusions" VALUES(1,'2026-03-01 12:04:00.123456');
INSERT INTO "exclusions" VALUES(2,'2026-03-01 12:07:30.123456');
INSERT INTO "exclusions" VALUES(6,'2026-03-01 12:14:00.123456');
CREATE TABLE federation_facts (
	"key" VARCHAR(100) NOT NULL, 
	value JSON NOT NULL, 
	at DATETIME NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "federation_facts" VALUES('federation','null','2026-03-01 12:01:00.123456');
INSERT INTO "federation_facts" VALUES('note','{"\u00e9": [1, 0.5]}','2026-03-01 12:01:00.123456');
CREATE TABLE fence (
	id INTEGER NOT NULL CONSTRAINT one_fence CHECK (id = 1), 
	token INTEGER NOT NULL, 
	holder VARCHAR(200) NOT NULL, 
	acquired_at DATETIME, 
	PRIMARY KEY (id)
);
INSERT INTO "fence" VALUES(1,1,'hospital-server:4711 run 17','2026-03-01 12:00:30.123456');
CREATE TABLE legal_moves (
	from_status VARCHAR(20) NOT NULL, 
	to_status VARCHAR(20) NOT NULL, 
	PRIMARY KEY (from_status, to_status)
);
INSERT INTO "legal_moves" VALUES('received','scheduled');
INSERT INTO "legal_moves" VALUES('received','failed');
INSERT INTO "legal_moves" VALUES('received','cancelled');
INSERT INTO "legal_moves" VALUES('scheduled','unlearning');
INSERT INTO "legal_moves" VALUES('scheduled','failed');
INSERT INTO "legal_moves" VALUES('scheduled','cancelled');
INSERT INTO "legal_moves" VALUES('unlearning','recovering');
INSERT INTO "legal_moves" VALUES('unlearning','scheduled');
INSERT INTO "legal_moves" VALUES('unlearning','failed');
INSERT INTO "legal_moves" VALUES('recovering','verifying');
INSERT INTO "legal_moves" VALUES('verifying','completed');
INSERT INTO "legal_moves" VALUES('failed','scheduled');
CREATE TABLE refusals (
	sequence INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	at DATETIME NOT NULL, 
	caller VARCHAR(200) NOT NULL, 
	role VARCHAR(20) NOT NULL, 
	call VARCHAR(100) NOT NULL, 
	reason TEXT NOT NULL, 
	detail JSON NOT NULL
);
INSERT INTO "refusals" VALUES(1,'2026-03-01 12:16:00.123456','eve','client','ListClients','not yours','{"times": 3}');
CREATE TABLE requests (
	number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	idempotency_key VARCHAR(200) NOT NULL, 
	target_key VARCHAR(250) NOT NULL, 
	target JSON NOT NULL, 
	client_id VARCHAR(200), 
	method VARCHAR(100) NOT NULL, 
	parameters JSON NOT NULL, 
	submitted_by VARCHAR(200) NOT NULL, 
	status VARCHAR(20) NOT NULL, 
	reason TEXT NOT NULL, 
	retryable BOOLEAN NOT NULL, 
	attempts INTEGER NOT NULL, 
	created_at DATETIME NOT NULL, 
	updated_at DATETIME NOT NULL, 
	result JSON NOT NULL, 
	UNIQUE (idempotency_key)
);
INSERT INTO "requests" VALUES(1,'k1','client/hospital-0','{"granularity": "sample", "client_id": "hospital-0", "sample_ids": ["patient-0017", "patient-0042", "patient-\u00e9"], "class_label": null}','hospital-0','puf-special','{"unlearning_rate": 2.0}','ada','completed','',0,0,'2026-03-01 12:02:30.123456','2026-03-01 12:05:00.123456','{"report": "reports/r-000001/report.html", "cost": {"seconds": 2.5, "bytes": 10.0}, "recovery_rounds": 2}');
INSERT INTO "requests" VALUES(2,'k2','client/hospital-1','{"granularity": "client", "client_id": "hospital-1", "sample_ids": [], "class_label": null}','hospital-1','puf-special','{"unlearning_rate": 2.0}','ada','completed','',0,0,'2026-03-01 12:06:00.123456','2026-03-01 12:08:30.123456','{"report": "x"}');
INSERT INTO "requests" VALUES(3,'k3','client/hospital-2','{"granularity": "sample", "client_id": "hospital-2", "sample_ids": ["patient-0099"], "class_label": null}','hospital-2','puf-special','{"unlearning_rate": 2.0}','hospital-2','cancelled','',0,0,'2026-03-01 12:09:00.123456','2026-03-01 12:09:30.123456','{}');
INSERT INTO "requests" VALUES(4,'k4','client/hospital-2','{"granularity": "sample", "client_id": "hospital-2", "sample_ids": ["patient-0100"], "class_label": null}','hospital-2','puf-special','{"unlearning_rate": 2.0}','ada','failed','client hospital-2: no answer',1,0,'2026-03-01 12:10:00.123456','2026-03-01 12:10:30.123456','{}');
INSERT INTO "requests" VALUES(5,'k5','client/hospital-2','{"granularity": "sample", "client_id": "hospital-2", "sample_ids": ["patient-0101"], "class_label": null}','hospital-2','puf-special','{"unlearning_rate": 2.0}','ada','failed','the ids are unknown',0,0,'2026-03-01 12:11:00.123456','2026-03-01 12:12:00.123456','{}');
INSERT INTO "requests" VALUES(6,'k6','class/3','{"granularity": "class", "client_id": null, "sample_ids": [], "class_label": 3}',NULL,'puf-special','{"unlearning_rate": 2.0}','ada','recovering','',0,0,'2026-03-01 12:12:30.123456','2026-03-01 12:14:00.123456','{}');
INSERT INTO "requests" VALUES(7,'k7','client/hospital-0','{"granularity": "sample", "client_id": "hospital-0", "sample_ids": ["patient-0001", "patient-0002"], "class_label": null}','hospital-0','puf-special','{"unlearning_rate": 2.0}','site of client hospital-0','scheduled','',0,0,'2026-03-01 12:14:30.123456','2026-03-01 12:15:00.123456','{}');
CREATE TABLE rounds (
	sequence INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	round INTEGER NOT NULL, 
	kind VARCHAR(20) NOT NULL, 
	request_ids JSON NOT NULL, 
	metrics JSON NOT NULL, 
	at DATETIME NOT NULL
);
INSERT INTO "rounds" VALUES(1,1,'training','[]','{"loss": 1.0, "participants": ["hospital-0"], "x": null}','2026-03-01 12:02:00.123456');
INSERT INTO "rounds" VALUES(2,2,'unlearning','["r-000001"]','{"loss": 0.5, "participants": ["hospital-0"], "x": null}','2026-03-01 12:05:30.123456');
INSERT INTO "rounds" VALUES(3,3,'training','[]','{"loss": 0.3333333333333333, "participants": ["hospital-0"], "x": null}','2026-03-01 12:16:30.123456');
CREATE INDEX ix_requests_client_id ON requests (client_id);
CREATE INDEX ix_requests_status ON requests (status);
CREATE UNIQUE INDEX one_open_request_per_target ON requests (target_key) WHERE status IN ('received', 'recovering', 'scheduled', 'unlearning', 'verifying');
CREATE TRIGGER exclusions_no_update BEFORE UPDATE ON exclusions BEGIN SELECT RAISE(ABORT, 'exclusions is append-only'); END;
CREATE TRIGGER exclusions_no_delete BEFORE DELETE ON exclusions BEGIN SELECT RAISE(ABORT, 'exclusions is append-only'); END;
CREATE TRIGGER legal_moves_no_update BEFORE UPDATE ON legal_moves BEGIN SELECT RAISE(ABORT, 'legal_moves is append-only'); END;
CREATE TRIGGER legal_moves_no_delete BEFORE DELETE ON legal_moves BEGIN SELECT RAISE(ABORT, 'legal_moves is append-only'); END;
CREATE TRIGGER exclusions_no_replace BEFORE INSERT ON exclusions WHEN EXISTS (SELECT 1 FROM exclusions WHERE request_number = NEW.request_number) BEGIN SELECT RAISE(ABORT, 'exclusions is append-only'); END;
CREATE TRIGGER legal_moves_no_insert BEFORE INSERT ON legal_moves BEGIN SELECT RAISE(ABORT, 'legal_moves changes by migration only'); END;
CREATE TRIGGER requests_no_replace BEFORE INSERT ON requests WHEN EXISTS (SELECT 1 FROM requests WHERE number = NEW.number OR idempotency_key = NEW.idempotency_key OR (target_key = NEW.target_key AND status IN ('received', 'recovering', 'scheduled', 'unlearning', 'verifying'))) BEGIN SELECT RAISE(ABORT, 'this request exists, or one for the same target is open'); END;
CREATE TRIGGER requests_no_update_or_replace BEFORE UPDATE ON requests WHEN NEW.status IN ('received', 'recovering', 'scheduled', 'unlearning', 'verifying') AND EXISTS (SELECT 1 FROM requests WHERE target_key = NEW.target_key AND number <> NEW.number AND status IN ('received', 'recovering', 'scheduled', 'unlearning', 'verifying')) BEGIN SELECT RAISE(ABORT, 'a request for the same target is open'); END;
CREATE TRIGGER requests_no_delete BEFORE DELETE ON requests BEGIN SELECT RAISE(ABORT, 'requests are never deleted'); END;
CREATE TRIGGER requests_start_received BEFORE INSERT ON requests WHEN NEW.status <> 'received' BEGIN SELECT RAISE(ABORT, 'a request starts as received'); END;
CREATE TRIGGER requests_legal_moves BEFORE UPDATE ON requests WHEN OLD.status <> NEW.status AND NOT EXISTS (SELECT 1 FROM legal_moves WHERE from_status = OLD.status AND to_status = NEW.status) BEGIN SELECT RAISE(ABORT, 'illegal move of a request'); END;
CREATE TRIGGER requests_immutable BEFORE UPDATE ON requests WHEN OLD.number IS NOT NEW.number OR OLD.idempotency_key IS NOT NEW.idempotency_key OR OLD.target_key IS NOT NEW.target_key OR OLD.client_id IS NOT NEW.client_id OR OLD.method IS NOT NEW.method OR OLD.submitted_by IS NOT NEW.submitted_by OR OLD.created_at IS NOT NEW.created_at OR OLD.target IS NOT NEW.target OR OLD.parameters IS NOT NEW.parameters BEGIN SELECT RAISE(ABORT, 'what a request asks for never changes'); END;
CREATE INDEX ix_events_request_number ON events (request_number);
CREATE UNIQUE INDEX events_never_fork ON events (previous_hash);
CREATE INDEX ix_requests_submitted_by_status ON requests (submitted_by, status);
CREATE TRIGGER events_no_update BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events is append-only'); END;
CREATE TRIGGER events_no_delete BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'events is append-only'); END;
CREATE TRIGGER events_no_replace BEFORE INSERT ON events WHEN EXISTS (SELECT 1 FROM events WHERE sequence = NEW.sequence OR previous_hash = NEW.previous_hash) BEGIN SELECT RAISE(ABORT, 'events is append-only'); END;
CREATE TRIGGER refusals_no_update BEFORE UPDATE ON refusals BEGIN SELECT RAISE(ABORT, 'refusals is append-only'); END;
CREATE TRIGGER refusals_no_delete BEFORE DELETE ON refusals BEGIN SELECT RAISE(ABORT, 'refusals is append-only'); END;
CREATE TRIGGER refusals_no_replace BEFORE INSERT ON refusals WHEN EXISTS (SELECT 1 FROM refusals WHERE sequence = NEW.sequence) BEGIN SELECT RAISE(ABORT, 'refusals is append-only'); END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('rounds',3);
INSERT INTO "sqlite_sequence" VALUES('requests',7);
INSERT INTO "sqlite_sequence" VALUES('refusals',1);
COMMIT;
