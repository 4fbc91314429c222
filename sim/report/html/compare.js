'use strict';
// Two runs side by side: A before, B after.
(() => {
  const {data, el, bytes, count, span, signed, colour, table, csvButton, card, fill, kGiB, outcomeTitle, subtitle} = oomcast;
  const {groupOf, unpack, highest, swatch, leafNames} = oomcast.classes;
  const runs = data.runs;
  const letters = ['A', 'B'];
  const ranks = runs.map((run) => run.ranks[0]);
  const letter = (i) => el('span', {class: `letter letter-${letters[i].toLowerCase()}`}, letters[i]);

  function heading() {
    const models = runs.map((run) => run.model || 'a run');
    fill('title', models[0] === models[1] ? models[0] : `${models[0]} and ${models[1]}`);
    ['before', 'after'].forEach((id, i) => fill(id, [letter(i), subtitle(runs[i])]));
    fill('verdict', runs.map((run, i) => {
      const peak = run.ranks.reduce((worst, one) => (one.peaks[0].bytes > worst.peaks[0].bytes ? one : worst));
      const outcome = run.outcome;
      return el('div', {class: outcome.fits ? 'card verdict' : 'card verdict bad'}, el('h2', {}, letter(i), outcomeTitle(outcome)),
        el('p', {}, outcome.fits ? `Device peak ${bytes(peak.peaks[0].bytes)} of ${bytes(peak.total)}, ${bytes(peak.total - peak.peaks[0].bytes)} free.`
          : `${[outcome.phase && `In ${outcome.phase}`, outcome.class].filter(Boolean).join(', ')}${outcome.short_by > 0 ? `: ${bytes(outcome.short_by)} short` : ''}`),
        outcome.message ? el('p', {class: 'muted'}, outcome.message) : null);
    }));
  }

  // ---- what differs -------------------------------------------------------------------------------

  function settings() {
    const named = runs.map((run) => new Map([
      ...[['model', run.model], ['gpu', run.gpu], ['engine', `${run.engine} ${run.engine_version}`], ['workload', run.workload.join('; ')]],
      ...run.resolved, ...run.given.map(([name, value]) => [`--${name}`, value])]));
    const names = [...new Set([...named[0].keys(), ...named[1].keys()])];
    const rows = names.map((name) => ({name, values: named.map((map) => map.get(name) ?? '')})).filter((row) => row.values[0] !== row.values[1]);
    fill('settings', card('What differs', 'Flags of the launch lines, what the engine makes of them, and the workload.', [],
      rows.length === 0 ? el('p', {class: 'muted'}, 'The two runs have the same settings.') : table([
        {name: 'setting', cell: (row) => row.name},
        ...letters.map((name, i) => ({name, style: 'half', cell: (row) => (row.values[i] === '' ? '–' : el('code', {}, row.values[i]))}))], rows)));
  }

  function results() {
    const ready = (i, leaf) => (ranks[i].startup.length ? ranks[i].startup[ranks[i].startup.length - 1].live[leafNames.indexOf(leaf)] : 0);
    const of = (pick) => runs.map(pick);
    const report = of((run) => Object.fromEntries(run.engine_report));
    const seconds = (name, key, at) => ({name, values: of((run) => (run.totals.finished ? run.totals[key][at] : NaN)), text: span});
    const rows = [
      {name: 'device peak', values: ranks.map((rank) => rank.peaks[0].bytes), text: bytes},
      {name: 'free at the peak', values: ranks.map((rank) => rank.total - rank.peaks[0].bytes), text: bytes},
      {name: 'KV pool', values: [0, 1].map((i) => ready(i, 'kv.pool')), text: bytes},
      {name: 'KV tokens', values: report.map((one) => (one.kv_tokens ? +one.kv_tokens : NaN)), text: count},
      {name: 'KV peak use', values: of((run) => run.totals.kv_peak), text: bytes},
      {name: 'requests finished', values: of((run) => run.totals.finished), text: count},
      {name: 'preemptions', values: of((run) => run.totals.preemptions), text: count},
      {name: 'steps', values: of((run) => run.totals.steps), text: count},
      {name: 'time for all', values: of((run) => run.totals.makespan_s), text: span},
      {name: 'output tokens per second', values: of((run) => (run.totals.makespan_s > 0 ? run.totals.output_tokens / run.totals.makespan_s : NaN)), text: count},
      seconds('first token, median', 'ttft', 1), seconds('first token, p99', 'ttft', 3), seconds('per output token, median', 'tpot', 1),
      seconds('per output token, p99', 'tpot', 3), seconds('whole answer, median', 'latency', 1), seconds('whole answer, p99', 'latency', 3)];
    const shown = (value, text) => (Number.isNaN(value) ? '–' : text(value));
    const change = (row) => {
      const by = row.values[1] - row.values[0];
      const size = Number.isNaN(by) ? '–' : row.text(Math.abs(by));
      return by === 0 || size === '0' || size === '–' ? size : `${by > 0 ? '+' : '\u2212'}${size}`;
    };
    fill('results', card('Results', '', csvButton('results', () => [['quantity', ...letters], ...rows.map((row) => [row.name, ...row.values])]),
      table([{name: '', cell: (row) => row.name}, ...letters.map((name, i) => ({name, number: true, cell: (row) => shown(row.values[i], row.text)})),
        {name: 'B \u2212 A', number: true, cell: change},
        {name: '', number: true, cell: (row) => el('span', {class: 'muted'}, row.values[0] > 0 && row.values[1] !== row.values[0] && !Number.isNaN(row.values[1])
          ? `${signed(100 * (row.values[1] / row.values[0] - 1), (value) => value.toFixed(1)).replace('-', '\u2212')} %` : '')}], rows)));
  }

  // Bytes of each class in both runs at one moment, and a bar to the side that grew.
  function classTable(lives) {
    const rows = leafNames.map((name, leaf) => ({name, leaf, values: lives.map((live) => live[leaf])})).filter((row) => row.values[0] > 0 || row.values[1] > 0);
    rows.push({name: 'in use', leaf: -1, values: lives.map((live) => live.reduce((all, one) => all + one, 0))});
    const most = rows.reduce((largest, row) => Math.max(largest, row.leaf < 0 ? 0 : Math.abs(row.values[1] - row.values[0])), 1);
    const bar = (by) => el('div', {class: 'track', 'aria-hidden': 'true'}, el('i', {class: by > 0 ? 'more' : 'less',
      style: {left: `${by > 0 ? 50 : 50 - 50 * Math.min(-by / most, 1)}%`, width: `${50 * Math.min(Math.abs(by) / most, 1)}%`}}));
    return table([
      {name: 'class', style: 'nowrap', cell: (row) => [row.leaf < 0 ? null : swatch(groupOf(row.leaf).key), row.name]},
      ...letters.map((name, i) => ({name, number: true, cell: (row) => bytes(row.values[i])})),
      {name: 'B \u2212 A', number: true, cell: (row) => (row.values[1] === row.values[0] ? '0' : `${row.values[1] > row.values[0] ? '+' : ''}${bytes(row.values[1] - row.values[0])}`)},
      {name: '', style: 'bars', cell: (row) => (row.leaf < 0 || row.values[0] === row.values[1] ? '' : bar(row.values[1] - row.values[0]))}], rows);
  }

  function classes() {
    const moments = [
      {name: 'at the end of the startup', lives: ranks.map((rank) => (rank.startup.length ? rank.startup[rank.startup.length - 1].live : leafNames.map(() => 0)))},
      {name: 'at the peak of the card', lives: ranks.map((rank) => rank.peaks[0].live)}];
    fill('classes', moments.map((moment, at) => card(`Classes ${moment.name}`, `Rank ${[...new Set(ranks.map((rank) => rank.rank))].join(' and ')}. Bars to the right: more in B.`,
      csvButton(at === 0 ? 'classes_ready' : 'classes_peak', () => [['class', ...letters], ...leafNames.map((name, leaf) => [name, ...moment.lives.map((live) => live[leaf])])]),
      classTable(moment.lives))));
  }

  // ---- over time ----------------------------------------------------------------------------------

  // Both runs on one axis of time; a value holds until the run's next one, and ends with the run.
  function merge(all) {
    const time = Float64Array.from(new Set(all.flatMap((one) => [...one.time]))).sort();
    const hold = (one, values) => {
      const out = new Float64Array(time.length).fill(NaN);
      for (let i = 0, at = -1; i < time.length; ++i) {
        while (at + 1 < one.rows && one.time[at + 1] <= time[i]) {
          ++at;
        }
        if (at >= 0 && time[i] <= one.time[one.rows - 1]) {
          out[i] = values[at];
        }
      }
      return out;
    };
    return {time, of: (name) => all.map((one) => hold(one, one[name]))};
  }

  let unlink = () => {};
  function overTime() {
    unlink();
    const merged = merge(ranks.map(unpack));
    const parts = ['memory', 'kv', 'load', 'waiting'];
    parts.forEach((id) => fill(id));
    if (merged.time.length === 0) {
      fill('memory', card('Over time', '', [], el('p', {class: 'muted'}, 'Neither run served anything.')));
      return;
    }
    const known = (value) => (Number.isNaN(value) ? 0 : value);
    const chart = (id, title, name, unit, text, scale) => {
      const values = merged.of(name);
      const most = Math.max(...values.map((one) => highest(one.map(known))));
      return oomcast.charts.chart({id, title, unit, time: merged.time, scale, when: (i) => `at ${span(merged.time[i])}`,
        text: (value) => (Number.isNaN(value) ? '–' : text(value)), selector: id === 'memory', range: id === 'memory' || most === 0 ? undefined : [0, most * (scale || 1) * 1.08],
        series: values.map((one, i) => ({name: letters[i], values: one, colour: colour(i === 0 ? 'line-a' : 'line-b'), dash: i === 0 ? undefined : [6, 3]}))});
    };
    unlink = oomcast.charts.link([
      chart('memory', 'Memory in use on the card', 'used', 'GiB', bytes, 1 / kGiB), chart('kv', 'KV cache in use', 'kv_used', 'GiB', bytes, 1 / kGiB),
      chart('load', 'Running requests', 'running', 'requests', count), chart('waiting', 'Waiting requests', 'waiting', 'requests', count)], 'zoom');
  }

  function choices() {
    const pick = (i) => el('label', {}, letter(i), el('select', {'aria-label': `Rank of ${letters[i]}`, onchange: (event) => {
      ranks[i] = runs[i].ranks[+event.target.value];
      show();
    }}, runs[i].ranks.map((rank, at) => el('option', {value: at}, `rank ${rank.rank}`))));
    fill('choices', [0, 1].filter((i) => runs[i].ranks.length > 1).map(pick));
  }
  function show() {
    results();
    classes();
    overTime();
  }

  heading();
  settings();
  choices();
  show();
  fill('footer', runs.map((run, i) => el('p', {}, letter(i), [run.program_version && `oomcast ${run.program_version}`, run.date, run.digest && `digest ${run.digest}`].filter(Boolean).join('  ·  '))),
    el('p', {}, 'Charts: dygraphs, MIT licence, © Dan Vanderkam and contributors.'));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', show);
})();
