"""The page's HTML and CSS, as a Jinja template. Light or dark, printable, readable without colours.

All colours but those of the plots' series are variables, set once for light and once for dark; paper is always light.
The console's pages have the same style (server/console/static/console.css adds to it).
"""

# ruff: noqa: E501 - breaking lines of markup changes what the page's text looks like

STYLE = """
:root { color-scheme: light; --paper: #fff; --ink: #1f2933; --soft: #5b6770; --line: #dde3e8; --rule: #76828d; --wash: #f5f7f9;
  --accent: #0072b2; --warn: #fff8f1; --warn-line: #e5b98f; }
@media screen and (prefers-color-scheme: dark) {
  :root { color-scheme: dark; --paper: #14191e; --ink: #e4e9ee; --soft: #a6b1bc; --line: #36404a; --rule: #8a96a1; --wash: #1d242b;
    --accent: #56b4e9; --warn: #2b2118; --warn-line: #8a5a2b; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; color: var(--ink); background: var(--paper); font: 16px/1.55 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.5rem 4rem; }
header { border-bottom: 3px solid var(--accent); padding-bottom: 1rem; margin-bottom: 1.5rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .35rem; letter-spacing: -.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .7rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line); }
h3 { font-size: .82rem; letter-spacing: .06em; text-transform: uppercase; color: var(--accent); margin: 0 0 .3rem; }
p { margin: 0 0 .5rem; max-width: 46rem; }
.soft { color: var(--soft); font-size: .9rem; }
.summary { background: var(--wash); border-left: 4px solid var(--accent); padding: 1.1rem 1.3rem .7rem; }
.summary section + section { margin-top: .9rem; }
.summary ul { margin: 0; padding-left: 1.1rem; }
.summary li { margin-bottom: .25rem; max-width: 46rem; }
.caveat { border: 1px solid var(--warn-line); background: var(--warn); padding: .7rem 1rem; margin: 1rem 0 0; max-width: none; }
.tiles { display: grid; grid-template-columns: repeat(4, 1fr); gap: .8rem; margin: 1.3rem 0 0; padding: 0; list-style: none; }
.tiles li { border: 1px solid var(--line); border-radius: 6px; padding: .8rem .9rem; display: flex;
  flex-direction: column; justify-content: space-between; }
.tiles .label { font-size: .84rem; line-height: 1.35; color: var(--soft); }
.tiles .now { font-size: 1.6rem; font-weight: 650; line-height: 1.2; margin-top: .5rem; font-variant-numeric: tabular-nums; }
.tiles .now.none { font-size: 1rem; font-weight: 500; color: var(--soft); }
.tiles .then { font-size: .84rem; color: var(--soft); }
table { border-collapse: collapse; width: 100%; font-size: .93rem; }
caption { text-align: left; color: var(--soft); font-size: .88rem; padding-bottom: .4rem; }
th, td { text-align: left; padding: .38rem .7rem .38rem 0; border-top: 1px solid var(--line); vertical-align: top; }
thead th { border-top: 0; border-bottom: 2px solid var(--ink); font-size: .85rem; }
tbody th { font-weight: 500; }
td.figure, th.figure { text-align: right; padding-right: .3rem; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.group th, tr.group td { border-top: 1px solid var(--rule); }
tbody tr:first-child th, tbody tr:first-child td { border-top: 0; }
td.none { color: var(--soft); font-style: italic; }
.plots { display: grid; grid-template-columns: 1fr 1fr; gap: 1.2rem 1.8rem; }
figure { margin: 0; break-inside: avoid; }
.wide { grid-column: 1 / -1; }
figcaption { font-size: .9rem; font-weight: 600; margin-bottom: .3rem; }
svg { width: 100%; height: auto; display: block; }
code { font: .86rem/1.4 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.facts th { width: 13rem; color: var(--soft); }
.facts td { overflow-wrap: anywhere; }
.gaps li { margin-bottom: .25rem; max-width: 46rem; }
dl { display: grid; grid-template-columns: 12rem 1fr; gap: .25rem 1rem; font-size: .9rem; margin: 0; }
dt { font-weight: 600; } dd { margin: 0; color: var(--soft); }
footer { margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: .8rem; }
@media (max-width: 46rem) { .tiles { grid-template-columns: 1fr 1fr; } .plots { grid-template-columns: 1fr; }
  dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; } .scroll { overflow-x: auto; } }
@media print { body { font-size: 10.5pt; } main { max-width: none; padding: 0; } h2 { break-after: avoid; }
  tr, .tiles li, .summary section { break-inside: avoid; } thead { display: table-header-group; }
  .summary, .caveat { print-color-adjust: exact; -webkit-print-color-adjust: exact; } @page { margin: 18mm 16mm; } }
"""

TEMPLATE = (
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Deletion report: {{ data.request.target }} ({{ data.request.id }})</title>
<style>"""
    + STYLE
    + """</style>
</head>
{% macro cell(text) %}<td class="figure{{ ' none' if text == words.MISSING }}">{{ text }}</td>{% endmacro %}
<body><main>
<header>
<h1>Deletion report: {{ data.request.target }}</h1>
<p class="soft">Federation {{ data.federation.name }} · request {{ data.request.id }}
{%- if data.written_at %} · written {{ words.moment(data.written_at) }}{% endif %}</p>
</header>

<div class="summary">
<section><h3>What was asked</h3><p>{{ words.describe_request(data) }}</p></section>
<section><h3>What was done</h3><ul>{% for line in words.describe_unlearning(data) %}<li>{{ line }}</li>{% endfor %}</ul></section>
<section><h3>What was measured</h3><ul>{% for line in words.describe_measurements(data) %}<li>{{ line }}</li>{% endfor %}</ul></section>
</div>

<ul class="tiles">
{% set before, after = data.first("before"), data.final() %}
{% for label, read in tiles.items() %}
{% set now = words.share(after and read(after)) %}
<li><span class="label">{{ label[0] | upper }}{{ label[1:] }}</span>
<span><span class="now{{ ' none' if now == words.MISSING }}">{{ now }}</span><br>
<span class="then">before: {{ words.share(before and read(before)) }}</span></span></li>
{% endfor %}
</ul>
<p class="caveat">How to read this: these figures describe the model and the attacks used here, on this day. A low
share does not prove that nothing about the data is left in the model, and a share above zero is normal:
examples the model never saw are called members too. The fairest comparison is a model trained anew without
the data, where there is one.</p>

<h2>Before and after</h2>
<div class="scroll"><table>
<thead><tr><th scope="col">Measure</th><th scope="col" class="figure">Before</th>
<th scope="col" class="figure">After unlearning</th><th scope="col" class="figure">After recovery</th></tr></thead>
<tbody>
{% set columns = (data.first("before"), data.first("unlearned"), data.last("recovery")) %}
{% for name in ("test", "retained", "forgotten") %}
<tr class="group"><th scope="row">{{ data.federation.score_name | capitalize }}, {{ name }} data</th>
{% for item in columns %}{{ cell(words.share(item and item.score(name))) }}{% endfor %}</tr>
<tr><th scope="row">Loss, {{ name }} data</th>
{% for item in columns %}{{ cell(words.number(item and item[name] and item[name].loss)) }}{% endfor %}</tr>
<tr><th scope="row">Examples, {{ name }} data</th>
{% for item in columns %}{{ cell("{:,}".format(item[name].num_examples) if item and item[name] else words.MISSING) }}{% endfor %}</tr>
{% endfor %}
{% for attack, label in words.SHARES.items() %}
<tr{% if loop.first %} class="group"{% endif %}><th scope="row">{{ label }}</th>
{% for item in columns %}{{ cell(words.share(item and item.attacks.get(attack))) }}{% endfor %}</tr>
{% endfor %}
</tbody></table></div>

{% if attacks %}
<h2>Attacks</h2>
<p>Verdict: <strong>{{ verdict.finding }}</strong>.{% for reason in verdict.reasons %} {{ reason }}{% endfor %}</p>
<div class="scroll"><table><caption>Can an attack tell the forgotten examples from test examples, which the model never
learnt from? In brackets: the 95 % interval.</caption>
<thead><tr><th scope="col">Attack</th><th scope="col">Model</th><th scope="col" class="figure">Called members</th>
<th scope="col" class="figure">Its power</th><th scope="col" class="figure">AUC</th>
<th scope="col">True positives at 1 %</th></tr></thead><tbody>
{% for label, stage, figure in attacks %}
<tr{% if stage == "before" %} class="group"{% endif %}><th scope="row">{{ label }}</th>
<td>{{ stage }}</td>
<td class="figure">{{ words.interval(figure.called, as_share=True) }}</td>
<td class="figure">{{ words.NO_FIGURE if figure.balanced_accuracy is none else words.share(figure.balanced_accuracy) }}</td>
<td class="figure">{{ words.interval(figure.auc, as_share=False) }}</td>
<td>{{ words.interval(figure.tpr, as_share=True) if figure.tpr else figure.tpr_reason or words.NO_FIGURE }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}

{% if plots.scores or plots.attacks or plots.costs %}
<h2>Plots</h2>
<div class="plots">
{% if plots.scores %}<figure><figcaption>{{ data.federation.score_name | capitalize }}</figcaption>{{ plots.scores }}</figure>{% endif %}
{% if plots.attacks %}<figure><figcaption>Forgotten examples called members</figcaption>{{ plots.attacks }}</figure>{% endif %}
{% if plots.scores or plots.attacks %}<p class="soft wide">Stages: before the deletion, right after unlearning, then the
number of recovery rounds (+1, +2, …).</p>{% endif %}
{% if plots.costs %}<figure class="wide"><figcaption>Traffic and time</figcaption>{{ plots.costs }}</figure>{% endif %}
</div>
{% endif %}

<h2>Cost</h2>
<div class="scroll"><table><thead><tr><th scope="col">Phase</th><th scope="col" class="figure">Rounds</th>
<th scope="col" class="figure">Server to clients</th><th scope="col" class="figure">Clients to server</th>
<th scope="col" class="figure">Time</th><th scope="col" class="figure">Most memory of a client</th>
<th scope="col" class="figure">Most memory of the server</th></tr></thead><tbody>
{% for name, phase, rounds in [("Unlearning", data.unlearning, data.unlearning.rounds),
                               ("Recovery", data.recovery, data.recovery.rounds),
                               ("Measuring for this report", data.measuring, ""),
                               ("Training shadow models, before", data.shadows, "")] if phase %}
<tr><th scope="row">{{ name }}</th><td class="figure">{{ rounds }}</td><td class="figure">{{ words.size(phase.bytes_sent) }}</td>
<td class="figure">{{ words.size(phase.bytes_received) }}</td><td class="figure">{{ words.duration(phase.seconds) }}</td>
<td class="figure">{{ words.memory(phase.peak_memory.client_bytes, phase.peak_memory.client_device_bytes) }}</td>
<td class="figure">{{ words.memory(phase.peak_memory.server_bytes, phase.peak_memory.server_device_bytes) }}</td></tr>
{% endfor %}
</tbody></table></div>

{% if data.formulas %}
<h3>Beside the closed formulas</h3>
<div class="scroll"><table><thead><tr><th scope="col">Phase</th><th scope="col" class="figure">Formula</th>
<th scope="col" class="figure">Measured, both ways</th><th scope="col" class="figure">Ratio</th>
<th scope="col" class="figure">FLOPs by formula</th><th scope="col">Why they differ</th></tr></thead><tbody>
{% for line in data.formulas %}
<tr><th scope="row">{{ line.phase | capitalize }}</th>
<td class="figure">{{ words.size(line.formula_bytes) }}</td>
<td class="figure">{{ words.size(line.measured_bytes) }}</td>
<td class="figure">{{ words.number(line.ratio) if line.ratio is not none else "–" }}</td>
<td class="figure">{{ words.flops(line.formula_flops) }}</td>
<td>{{ line.explanation }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}

{% if data.unlearning.findings %}
<h2>What the method reports of its own work</h2>
<div class="scroll"><table><tbody>
{% for name, value in data.unlearning.findings.items() %}<tr><th scope="row">{{ name }}</th><td>{{ words.format_finding(value) }}</td></tr>{% endfor %}
</tbody></table></div>
{% endif %}

<h2>What was not measured, and why</h2>
{% if gaps %}
<ul class="gaps">{% for line in gaps %}<li>{{ line }}</li>{% endfor %}</ul>
{% else %}
<p>Everything this report sets out to measure was measured.</p>
{% endif %}

<h2>The request and the federation</h2>
<table class="facts"><tbody>
{% for name, text in facts %}<tr><th scope="row">{{ name }}</th><td>{{ text }}</td></tr>
{% endfor %}
</tbody></table>

<h2>Fingerprints of the model</h2>
<table class="facts"><tbody>
{% for name, hash in [("Before", data.model_hash_before), ("After unlearning", data.model_hash_after_unlearning),
                      ("After recovery", data.model_hash_after)] %}
<tr><th scope="row">{{ name }}</th><td>{% if hash %}<code>{{ hash }}</code>{% else %}unknown{% endif %}</td></tr>
{% endfor %}
{% if data.model_hash_frozen %}<tr><th scope="row">Frozen part</th><td><code>{{ data.model_hash_frozen }}</code></td></tr>
{% endif %}
</tbody></table>

<h2>Timeline</h2>
{% if data.events %}
<table><thead><tr><th scope="col">Time</th><th scope="col">What</th><th scope="col">Why</th></tr></thead><tbody>
{% for event in data.events %}
<tr><td class="when">{{ words.moment(event.time) }}</td><td>{{ event.move }}</td><td>{{ event.reason }}</td></tr>
{% endfor %}
</tbody></table>
{% else %}<p>No event was recorded.</p>{% endif %}

{% if data.measurements | length > 3 %}
<h2>Every measurement</h2>
<div class="scroll"><table><caption>{{ data.federation.score_name | capitalize }} on three sets, and the share of forgotten
examples that each attack calls members.</caption>
<thead><tr><th scope="col">Stage</th><th scope="col" class="figure">Round</th><th scope="col" class="figure">Test</th>
<th scope="col" class="figure">Retained</th><th scope="col" class="figure">Forgotten</th>
<th scope="col" class="figure">Loss attack</th><th scope="col" class="figure">Confidence attack</th></tr></thead><tbody>
{% for item in data.measurements %}
<tr><th scope="row">{{ words.STAGE_NAMES[item.stage] }}</th><td class="figure">{{ item.round }}</td>
{% for name in ("test", "retained", "forgotten") %}{{ cell(words.share(item.score(name))) }}{% endfor %}
{% for attack in words.ATTACK_NAMES %}{{ cell(words.share(item.attacks.get(attack))) }}{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% endif %}

<h2>Words</h2>
<dl>{% for term, meaning in glossary %}<dt>{{ term }}</dt><dd>{{ meaning }}</dd>
{% endfor %}</dl>

<footer class="soft">The same facts for machines are in report.json beside this page. Its fingerprint is in the
certificate (certificate.json), which <code>flower-unlearn verify</code> checks.</footer>
</main></body></html>
"""
)
