'use strict';
// One run.
(() => {
  const {data, el, bytes, count, share, span, colour, table, csvButton, card, fill, kGiB, outcomeTitle, subtitle} = oomcast;
  const {groups, sumOf, unpack, sum, highest, lowest, highestAt, swatch, bar, liveTable, leafNames} = oomcast.classes;
  const run = data.runs[0];
  const fullest = run.ranks.reduce((worst, one) => (one.total - one.peaks[0].bytes < worst.total - worst.peaks[0].bytes ? one : worst));
  // First the rank that failed, else the one nearest to it.
  let rank = run.ranks.find((one) => run.outcome.rank >= one.rank && run.outcome.rank !== null && run.outcome.rank < one.rank + one.alike) || fullest;
  const readyOf = (of) => of.startup[of.startup.length - 1];

  // ---- what happened ------------------------------------------------------------------------------

  function heading() {
    fill('title', run.model || 'A run');
    fill('subtitle', subtitle(run));
  }

  function verdict() {
    const outcome = run.outcome;
    if (outcome.fits) {
      const free = fullest.total - fullest.peaks[0].bytes;
      fill('verdict', el('div', {class: 'card verdict'}, el('h2', {}, outcomeTitle(outcome)),
        el('p', {}, `At the peak ${bytes(free)} of ${bytes(fullest.total)} are still free` +
          `${run.all_ranks > 1 ? ` on rank ${fullest.rank}` : ''}, ${share(free, fullest.total)} of the card.`), remarks()));
      return;
    }
    const where = [outcome.phase && `Phase ${outcome.phase}`, outcome.rank !== null && `rank ${outcome.rank}`, outcome.class].filter(Boolean).join(', ');
    fill('verdict', el('div', {class: 'card verdict bad'}, el('h2', {}, outcomeTitle(outcome)),
      el('p', {}, `${where}${outcome.short_by > 0 ? `: ${bytes(outcome.short_by)} short` : ''}`),
      outcome.message ? el('p', {class: 'muted'}, outcome.message) : null,
      outcome.alive.length ? el('details', {}, el('summary', {}, 'Tensors of the step that failed'), tensorTable(outcome.alive)) : null,
      outcome.fixes.length ? el('div', {class: 'scroll'}, el('table', {}, el('thead', {}, el('tr', {}, el('th', {}, 'What would have helped, each simulated'), el('th', {}, ''))),
        el('tbody', {}, outcome.fixes.map((fix) => el('tr', {}, el('td', {}, el('code', {}, fix.change)),
          el('td', {}, fix.frees > 0 ? `gains ${bytes(fix.frees)}` : 'needs less')))))) : null, remarks()));
  }
  const remarks = () => {
    const all = [...run.warnings.map((text) => `Warning: ${text}`), ...run.notes];
    return all.length ? el('details', {}, el('summary', {}, `${all.length} remarks on the launch line`), el('ul', {}, all.map((text) => el('li', {}, text)))) : null;
  };

  function tiles() {
    const totals = run.totals;
    const report = Object.fromEntries(run.engine_report);
    const tile = (name, value, more) => el('div', {class: 'tile'}, el('dt', {}, name), el('dd', {}, value, el('small', {}, more || '')));
    const peak = fullest.peaks[0];
    fill('tiles',
      tile('Device peak', bytes(peak.bytes), `of ${bytes(fullest.total)}, ${moment(peak)}`),
      tile('KV cache', report.kv_tokens ? `${count(+report.kv_tokens)}` : bytes(totals.kv_pool), report.kv_tokens ? `tokens, ${bytes(totals.kv_pool)}` : ''),
      tile('KV peak use', share(totals.kv_peak, totals.kv_pool) || '–', totals.kv_peak > 0 ? `${bytes(totals.kv_peak)} at ${span(totals.kv_peak_s)}` : 'nothing was served'),
      tile('Requests', count(totals.finished), `of ${count(totals.requests)} served${totals.rejected ? `, ${count(totals.rejected)} rejected` : ''}`),
      tile('Preemptions', count(totals.preemptions), `in ${count(totals.steps)} steps`),
      tile('First token', totals.finished ? span(totals.ttft[1]) : '–', totals.finished ? `median; p99 ${span(totals.ttft[3])}` : ''),
      tile('Per output token', totals.finished ? span(totals.tpot[1]) : '–', totals.finished ? `median; p99 ${span(totals.tpot[3])}` : ''),
      tile('Throughput', totals.makespan_s > 0 ? count(totals.output_tokens / totals.makespan_s) : '–', totals.makespan_s > 0 ? `output tokens/s over ${span(totals.makespan_s)}` : ''));
  }

  // ---- an instant ---------------------------------------------------------------------------------

  function openDialog(title, about, ...content) {
    const dialog = document.getElementById('dialog');
    dialog.replaceChildren(el('div', {class: 'head'}, el('h2', {id: 'dialog-title'}, title),
      el('span', {class: 'tools'}, el('button', {type: 'button', autofocus: true, onclick: () => dialog.close()}, 'Close'))),
    el('p', {class: 'about'}, about), ...content);
    dialog.showModal();
  }
  function openPeak(of, peak) {
    openDialog(peak.of === 'device' ? 'Most memory in use' : `Most ${peak.of}`,
      `${bytes(peak.bytes)}, ${moment(peak)}; rank ${of.rank}. All that was alive at that instant:`, liveTable(peak.live, of.total));
  }
  function openInstant(of, index, failed) {
    const series = unpack(of);
    const alive = failed && run.outcome.alive.length ? [el('h3', {}, 'Tensors of the step that failed'), tensorTable(run.outcome.alive)] : [];
    openDialog(`${failed ? 'Out of memory at' : 'At'} ${span(series.time[index])}`,
      `Rank ${of.rank}; ${count(series.running[index])} running, ${count(series.waiting[index])} waiting, a step of ${count(series.step_tokens[index])} tokens.`,
      liveTable(series.leaves.map((leaf) => leaf[index]), of.total), ...alive);
  }
  const moment = (peak) => (peak.during === 'serving' ? `at ${span(peak.time_s)}` : `in ${peak.during}`);

  // ---- over time ----------------------------------------------------------------------------------

  const fitted = {};  // charts that show where the values lie instead of the whole card
  function toggle(id, whole, fit) {
    const button = (text, value) => el('button', {type: 'button', 'aria-pressed': String(Boolean(fitted[id]) === value), onclick: () => {
      fitted[id] = value;
      drawTimelines();
    }}, text);
    return [button(whole, false), button(fit, true)];
  }

  // The row nearest to an instant.
  function rowAt(series, seconds) {
    let best = 0;
    for (let i = 1; i < series.rows; ++i) {
      if (Math.abs(series.time[i] - seconds) < Math.abs(series.time[best] - seconds)) {
        best = i;
      }
    }
    return best;
  }

  const ranOut = run.outcome.kind === 'runtime_oom';
  // The instant worth seeing first: the end where memory ran out, else the peak, where there is one.
  function tellingRow(series) {
    if (ranOut) {
      return series.rows - 1;
    }
    return highest(series.used) > lowest(series.used) ? highestAt(series.used) : highestAt(series.kv_used);
  }
  function memoryMarks(series) {
    const peak = rank.peaks[0];
    const index = tellingRow(series);
    if (ranOut) {
      return [{index, label: '✕', style: 'oom', title: 'Out of memory', open: () => openInstant(rank, index, true)}];
    }
    if (peak.during === 'serving') {
      return [{index: rowAt(series, peak.time_s), label: '▲', title: `Peak: ${bytes(peak.bytes)}`, open: () => openPeak(rank, peak)}];
    }
    return highest(series.used) > lowest(series.used)
      ? [{index, label: '▲', title: `Most in use while serving: ${bytes(series.used[index])}`, open: () => openInstant(rank, index)}] : [];
  }

  function memoryChart(series, when) {
    const pool = sum(groups.find((group) => group.key === 'kv-used').leaves.map((leaf) => series.leaves[leaf]), series.rows);
    const kvFree = pool.map((size, i) => Math.max(0, size - series.kv_used[i] - series.kv_cached[i]));
    const kvUsed = pool.map((size, i) => Math.min(size, series.kv_used[i]));
    const kvCached = pool.map((size, i) => size - kvUsed[i] - kvFree[i]);
    const bands = groups.flatMap((group) => (group.key === 'kv-used'
      ? [{key: 'kv-used', name: 'KV in use', values: kvUsed}, {key: 'kv-cached', name: 'KV reusable', values: kvCached}, {key: 'kv-free', name: 'KV free', values: kvFree}]
      : [{key: group.key, name: group.name, values: sum(group.leaves.map((leaf) => series.leaves[leaf]), series.rows)}]))
      .filter((band) => highest(band.values) > 0).map((band) => ({...band, colour: colour(band.key)}));
    // Fitted: from the highest level that never changes up to the most that was used.
    let floor = 0;
    for (const band of bands) {
      if (highest(band.values) !== lowest(band.values)) {
        break;
      }
      floor += band.values[0];
    }
    const most = highest(series.used) / kGiB;
    const low = floor / kGiB;
    return oomcast.charts.chart({id: 'memory', title: 'Memory of the card',
      about: 'What every byte is for. The top of the stack is what NVML shows as used.', unit: 'GiB',
      time: series.time, series: bands, stacked: true, scale: 1 / kGiB, tall: true, selector: true, when, text: bytes,
      lines: [{name: 'torch reserved', values: series.reserved, colour: colour('physical'), line: true}],
      sums: [{name: 'in use (NVML)', values: series.used, sum: true}, {name: 'torch allocated', values: series.allocated},
        {name: 'free', values: series.used.map((used) => rank.total - used)},
        ...(highest(series.pinned) > 0 ? [{name: 'pinned host memory', values: series.pinned}] : [])],
      level: {name: `card: ${bytes(rank.total)}`, value: rank.total / kGiB},
      range: fitted.memory ? [low, most + (most - low) * 0.06] : [0, rank.total / kGiB * 1.06],
      marks: memoryMarks(series), rest: tellingRow(series), inSelector: 'KV in use', open: (index) => openInstant(rank, index),
      tools: toggle('memory', 'Whole card', 'What moves')});
  }

  const movingShades = {'runtime.activations': 'runtime', 'runtime.intermediates': 'runtime-2', 'runtime.logits': 'runtime-3',
    'workspace.attention': 'workspace', 'workspace.gemm': 'workspace-2', 'workspace.moe': 'workspace-3', 'system.cached': 'cached', 'system.fragmentation': 'fragmentation'};
  function movingChart(series, when) {
    const bands = Object.entries(movingShades).map(([name, shade]) => ({name, colour: colour(shade), values: series.leaves[leafNames.indexOf(name)]}))
      .filter((band) => highest(band.values) > 0);
    return bands.length === 0 ? null : oomcast.charts.chart({id: 'moving', title: 'Work memory and allocator',
      about: 'What steps take and PyTorch keeps for the next one.', unit: 'GiB', time: series.time, series: bands, stacked: true,
      scale: 1 / kGiB, when, text: bytes, rest: tellingRow(series), open: (index) => openInstant(rank, index),
      range: [0, Math.max(highest(sum(bands.map((band) => band.values), series.rows)) / kGiB * 1.06, 1e-3)]});
  }

  function kvChart(series, when) {
    const pool = highest(sum([series.kv_used, series.kv_cached, series.kv_free], series.rows));
    if (pool === 0) {
      return null;
    }
    const held = highest(sum([series.kv_used, series.kv_cached], series.rows));
    const index = highestAt(series.kv_used);
    return oomcast.charts.chart({id: 'kv', title: 'KV cache',
      about: 'Blocks that requests hold, free blocks whose content can still be hit, and the rest.', unit: 'GiB',
      time: series.time, stacked: true, scale: 1 / kGiB, when, text: bytes, whole: pool,
      series: [{name: 'in use', values: series.kv_used, colour: colour('kv-used')}, {name: 'reusable', values: series.kv_cached, colour: colour('kv-cached')},
        {name: 'free', values: series.kv_free, colour: colour('kv-free')}].filter((band) => highest(band.values) > 0),
      level: {name: `pool: ${bytes(pool)}`, value: pool / kGiB}, rest: index, open: (at) => openInstant(rank, at),
      range: fitted.kv ? [0, Math.max(held / kGiB * 1.1, 1e-3)] : [0, pool / kGiB * 1.1],
      marks: [{index, label: '▲', title: `Most in use: ${bytes(series.kv_used[index])}`, open: () => openInstant(rank, index)}],
      tools: toggle('kv', 'Whole pool', 'In use')});
  }

  function drawCharts() {
    const series = unpack(rank);
    const parts = ['memory', 'moving', 'kv', 'load', 'waiting', 'preempted', 'steps'];
    if (series.rows === 0) {
      parts.forEach((id) => fill(id));
      fill('memory', card('Memory of the card', '', [], el('p', {class: 'muted'}, 'Nothing was served, so there is nothing over time. The startup is below.')));
      return [];
    }
    const when = (index) => `at ${span(series.time[index])}`;
    const thinned = rank.rows < rank.rows_read ? ` ${count(rank.rows)} of ${count(rank.rows_read)} instants of timeline.csv, every peak among them.` : '';
    const drawn = [memoryChart(series, when), movingChart(series, when), kvChart(series, when)];
    const counted = (id, title, about, name, values) => oomcast.charts.chart({id, title, about, unit: 'requests', time: series.time, when, text: count,
      rest: highestAt(values), series: [{name, values, colour: colour('line-a')}]});
    const waited = highest(series.waiting) > 0;
    const preempted = highest(series.preemptions) > 0;
    const calm = [waited ? '' : ' None ever waited for another step.', preempted ? '' : ' None was preempted.'].join('');
    drawn.push(counted('load', 'Running requests', `In the batch while each step runs.${calm}${thinned}`, 'running', series.running));
    drawn.push(waited ? counted('waiting', 'Waiting requests', 'Not in the batch yet, or no longer.', 'waiting', series.waiting) : fill('waiting'));
    drawn.push(preempted ? counted('preempted', 'Preemptions', 'Requests that had to give up their blocks, so far.', 'preemptions so far', series.preemptions) : fill('preempted'));
    drawn.push(oomcast.charts.chart({id: 'steps', title: 'Tokens of a step', about: 'Prompt and output tokens that one step computes, at the instants kept.', unit: 'tokens', points: true,
      time: series.time, when, text: count, rest: highestAt(series.step_tokens), series: [{name: 'tokens', values: series.step_tokens, colour: colour('line-a')}]}));
    return drawn.filter(Boolean);
  }
  let unlink = () => {};
  function drawTimelines() {
    unlink();
    unlink = oomcast.charts.link(drawCharts(), 'zoom');
  }

  // ---- startup ------------------------------------------------------------------------------------

  function budget() {
    const ready = readyOf(rank);
    if (!ready) {
      fill('budget');
      return;
    }
    const kv = groups.find((group) => group.key === 'kv-used');
    const takes = groups.filter((group) => group !== kv).map((group) => ({name: group.name, key: group.key, size: sumOf(group, ready.live)}))
      .filter((row) => row.size > 0);
    let left = rank.total;
    const rows = [{name: 'Card', size: rank.total, parts: [{from: 0, size: rank.total, colour: colour('muted')}], left: rank.total}];
    for (const take of takes) {
      left -= take.size;
      rows.push({...take, parts: [{from: left, size: take.size, colour: colour(take.key)}], left, minus: true});
    }
    const pool = sumOf(kv, ready.live);
    left -= pool;
    rows.push({name: 'KV pool', key: 'kv-used', size: pool, parts: [{from: left, size: pool, colour: colour('kv-used')}], left});
    rows.push({name: 'Free', size: left, parts: [{from: 0, size: left, colour: colour('line')}], left});
    fill('budget', card('From the card to the KV pool', `What stands when the startup ends (${ready.phase}).`,
      csvButton('budget', () => [['class', 'bytes', 'left_bytes'], ...rows.map((row) => [row.name, row.size, row.left])]),
      table([
        {name: '', cell: (row) => [row.key ? swatch(row.key) : null, row.name]},
        {name: 'bytes', number: true, cell: (row) => `${row.minus ? '\u2212' : ''}${bytes(row.size)}`},
        {name: 'of the card', number: true, cell: (row) => share(row.size, rank.total)},
        {name: '', style: 'bars', cell: (row) => bar(row.parts, rank.total)},
      ], rows, {class: 'barred'}), engineReport()));
  }

  function engineReport() {
    const rows = run.engine_report;
    return rows.length === 0 ? null : el('details', {}, el('summary', {}, `What ${run.engine}'s own log would say`),
      table([{name: 'quantity', cell: ([name]) => name.replaceAll('_', ' ').replace(/ gib$/, ', GiB')}, {name: 'value', number: true, cell: ([, value]) => value}], rows));
  }

  function tensorTable(tensors) {
    return table([
      {name: 'tensor', cell: (row) => row.name}, {name: 'class', cell: (row) => row.class},
      {name: 'formula', cell: (row) => el('code', {}, row.formula)}, {name: 'bytes', number: true, cell: (row) => bytes(row.bytes)}], tensors);
  }

  function startup() {
    const phases = rank.startup;
    if (phases.length === 0) {
      fill('startup');
      return;
    }
    const parts = (phase) => {
      let from = 0;
      return groups.map((group) => {
        const part = {from, size: sumOf(group, phase.live), colour: colour(group.key)};
        from += part.size;
        return part;
      });
    };
    const profile = rank.profile;
    fill('startup', card('Startup', 'Memory as each phase ends, and the highest point within it.',
      csvButton('startup', () => [['phase', 'device_used_bytes', 'device_peak_bytes', 'torch_allocated_bytes', 'torch_reserved_bytes', ...leafNames],
        ...phases.map((phase) => [phase.phase, phase.used, phase.peak, phase.allocated, phase.reserved, ...phase.live])]),
      table([
        {name: 'phase', cell: (phase) => el('button', {type: 'button', class: 'link', onclick: () => openDialog(`After ${phase.phase}`, `Rank ${rank.rank}.`, liveTable(phase.live, rank.total))}, phase.phase)},
        {name: 'used', number: true, cell: (phase) => bytes(phase.used)}, {name: 'highest', number: true, cell: (phase) => bytes(phase.peak)},
        {name: 'torch allocated', number: true, style: 'wide', cell: (phase) => bytes(phase.allocated)}, {name: 'torch reserved', number: true, style: 'wide', cell: (phase) => bytes(phase.reserved)},
        {name: '', style: 'bars', cell: (phase) => bar(parts(phase), rank.total)},
      ], phases, {class: 'barred'}),
      profile.tensors.length ? el('details', {}, el('summary', {}, `Peak of the profile run: ${profile.moment}, ${bytes(profile.tensors.reduce((all, one) => all + one.bytes, 0))} of tensors`), tensorTable(profile.tensors)) : null));
  }

  const keyOf = (peak) => (peak.of === 'device' ? 'muted' : oomcast.classes.groupOf(leafNames.indexOf(peak.of)).key);
  function peaks() {
    fill('peaks', card('Peaks', 'The highest point of the card and of each class; press a name for all that was alive at that instant.',
      csvButton('peaks', () => [['of', 'bytes', 'time_s', 'during', ...leafNames], ...rank.peaks.map((peak) => [peak.of, peak.bytes, peak.time_s, peak.during, ...peak.live])]),
      table([
        {name: 'of', cell: (peak) => [swatch(keyOf(peak)), el('button', {type: 'button', class: 'link', onclick: () => openPeak(rank, peak)}, peak.of === 'device' ? 'whole card' : peak.of)]},
        {name: 'bytes', number: true, cell: (peak) => bytes(peak.bytes)},
        {name: 'when', cell: moment},
        {name: '', style: 'bars', cell: (peak) => bar([{from: 0, size: peak.bytes, colour: colour(keyOf(peak))}], rank.total)},
      ], rank.peaks, {class: 'barred'})));
  }

  // ---- what it rests on ---------------------------------------------------------------------------

  // "name = 133 +-60 MiB: what it is [where it is from]"
  function assumption(text) {
    const match = /^(\S+) = (.*?): (.*?)(?: \[(.*)\])?$/.exec(text);
    const unit = {kib: ' KiB', mib: ' MiB', gib: ' GiB'}[match && match[1].split('_').pop()] || '';
    return match ? {name: match[1], value: match[2].replace(/^(\S+) \+-(.*%)$/, `$1${unit} ± $2`).replace('+-', '± '), what: match[3], source: match[4] || ''} : {name: '', value: '', what: text, source: ''};
  }
  function basis() {
    const settings = (rows) => table([{name: 'name', cell: ([name]) => name}, {name: 'value', cell: ([, value]) => el('code', {}, value)}], rows, {class: 'compact'});
    const rows = run.assumptions.map(assumption);
    fill('basis', card('What the numbers rest on', 'Weights, KV blocks and the scheduler follow the engine\'s own arithmetic; the quantities below are measured or assumed, each with its uncertainty.',
      rows.length ? csvButton('assumptions', () => [['name', 'value', 'what', 'source'], ...rows.map((row) => [row.name, row.value, row.what, row.source])]) : [],
      rows.length ? table([{name: 'quantity', cell: (row) => row.what}, {name: 'taken as', style: 'nowrap', cell: (row) => row.value}, {name: 'from', cell: (row) => el('span', {class: 'about'}, row.source)}], rows)
        : el('p', {class: 'muted'}, 'Nothing was assumed.'),
      run.given.length ? el('div', {}, el('h3', {style: {marginTop: '1.2rem'}}, 'Given in the launch line'), settings(run.given)) : null,
      el('details', {}, el('summary', {}, 'What the engine makes of it'), settings(run.resolved))));
  }

  function footer() {
    fill('footer', el('p', {}, [run.program_version && `oomcast ${run.program_version}`, run.date, run.digest && `digest ${run.digest}`].filter(Boolean).join('  ·  ')),
      el('p', {}, 'Charts: dygraphs, MIT licence, © Dan Vanderkam and contributors. Press a chart to see all that was alive at that instant; drag to zoom, double-click for the whole run. Keys on a chart: ← → move the cursor, + − zoom, 0 whole run, Enter opens the instant.'));
  }

  // ---- rank and role ------------------------------------------------------------------------------

  function choices() {
    const roles = [...new Set(run.ranks.map((one) => one.role))];
    const name = (one) => `rank ${one.rank}${one.alike > 1 ? ` (stands for ${one.alike} alike)` : ''}`;
    const ranks = el('select', {id: 'rank', 'aria-label': 'Rank', onchange: () => show(run.ranks[+ranks.value])});
    const offer = (role) => ranks.replaceChildren(...run.ranks.map((one, i) => ({one, i})).filter(({one}) => role === undefined || one.role === role)
      .map(({one, i}) => el('option', {value: i}, name(one))));
    offer();
    ranks.value = run.ranks.indexOf(rank);
    const nodes = [];
    if (roles.length > 1) {
      nodes.push(el('select', {id: 'role', 'aria-label': 'Role', onchange: (event) => {
        offer(event.target.value === 'all roles' ? undefined : event.target.value);
        show(run.ranks[+ranks.value]);
      }}, ['all roles', ...roles].map((role) => el('option', {}, role))), ' ');
    }
    if (run.ranks.length > 1) {
      nodes.push(ranks);
    } else if (rank.alike > 1) {
      nodes.push(el('label', {}, `all ${rank.alike} ranks alike`));
    }
    if (run.ranks.length < run.all_ranks) {
      nodes.push(el('label', {}, ` ${run.ranks.length} of ${run.all_ranks} ranks, those with the highest peaks`));
    }
    fill('choices', nodes);
  }
  function show(chosen) {
    rank = chosen;
    drawTimelines();
    budget();
    startup();
    peaks();
  }

  heading();
  verdict();
  tiles();
  choices();
  show(rank);
  oomcast.requests.show(run);
  basis();
  footer();
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => show(rank));
})();
