'use strict';
// Latency of a run and its requests one by one.
oomcast.requests = (() => {
  const {el, column, count, span, colour, csvButton, card, fill} = oomcast;
  const kPage = 25;

  const text = (value) => (value < 0 ? '–' : span(value / 1e9));
  const columns = [
    {name: 'request', cell: (r, i) => r.ids[i], by: (r, i) => r.ids[i]},
    ...[['arrival', 'arrived at'], ['queued', 'queued'], ['ttft', 'first token'], ['tpot', 'per token'], ['latency', 'latency']]
      .map(([key, name]) => ({name, key, number: true, cell: (r, i) => text(r[key][i]), by: (r, i) => r[key][i]})),
    ...[['input', 'prompt'], ['output', 'output'], ['cached', 'cached'], ['preemptions', 'preempted']]
      .map(([key, name]) => ({name, key, number: true, cell: (r, i) => count(r[key][i]), by: (r, i) => r[key][i]})),
    {name: 'outcome', cell: (r, i) => r.outcomes[i].replaceAll('_', ' '), by: (r, i) => r.outcomes[i]},
  ];

  function unpack(written) {
    const out = {rows: written.rows, total: written.total, ids: written.ids, outcomes: written.outcomes};
    for (const {key} of columns.filter((c) => c.key)) {
      out[key] = column(written[key], written.rows);
    }
    return out;
  }

  function percentiles(totals) {
    const rows = [['first token', totals.ttft], ['per token', totals.tpot], ['whole answer', totals.latency]];
    const names = ['mean', 'p50', 'p90', 'p99', 'max'];
    return oomcast.table([{name: '', cell: ([name]) => name}, ...names.map((name, i) => ({name, number: true, style: name === 'mean' ? 'wide' : undefined, cell: ([, values]) => span(values[i])}))], rows);
  }

  // As short as a tick of an axis has to be.
  function shortSpan(seconds) {
    const [size, unit] = seconds >= 3600 ? [3600, 'h'] : seconds >= 60 ? [60, 'min'] : seconds >= 1 ? [1, 's'] : seconds >= 1e-3 ? [1e-3, 'ms'] : [1e-6, '\u00b5s'];
    return `${+(seconds / size).toPrecision(2)} ${unit}`;
  }

  // Seconds against the share of requests that are at least as fast, on a logarithmic axis.
  function curves(quantiles) {
    const lines = [{name: 'first token', values: quantiles.ttft, colour: colour('line-a')},
      {name: 'per token', values: quantiles.tpot, colour: colour('line-b'), dash: [6, 3]},
      {name: 'whole answer', values: quantiles.latency, colour: colour('line-c'), dash: [2, 3]}].filter((line) => line.values.length);
    const plot = el('div', {class: 'plot', role: 'img', 'aria-label': 'Time to first token, per output token and latency by percentile, seconds on a logarithmic axis.'});
    const key = el('p', {class: 'about', style: {marginTop: '0.5rem'}}, lines.map((line) => el('span', {class: 'entry'}, el('span', {class: 'swatch thin', style: {background: line.colour}}), line.name)));
    const options = Object.fromEntries(lines.map((line) => [line.name, {strokePattern: line.dash || null}]));
    return {plot, key, draw: () => new Dygraph(plot, lines[0].values.map((_, i) => [i, ...lines.map((line) => Math.max(line.values[i], 1e3) / 1e9)]), {
      labels: ['percentile', ...lines.map((line) => line.name)], colors: lines.map((line) => line.colour), series: options, legend: 'never', strokeWidth: 1.6, logscale: true,
      ylabel: 'seconds', xlabel: 'percentile of requests', xLabelHeight: 16, yLabelWidth: 18, interactionModel: {}, highlightCircleSize: 0,
      axisLineColor: colour('line'), gridLineColor: colour('line'), axes: {x: {drawGrid: false}, y: {axisLabelWidth: 56, axisLabelFormatter: shortSpan}}})};
  }

  function requestTable(r) {
    let order = Array.from({length: r.rows}, (_, i) => i);
    let sorted = {column: columns.find((c) => c.key === 'arrival'), down: false};
    let page = 0;
    const body = el('tbody', {});
    const where = el('span', {});
    const pages = Math.max(1, Math.ceil(r.rows / kPage));
    const heads = columns.map((c) => el('th', {scope: 'col', class: c.number ? 'n' : undefined}, el('button', {type: 'button', class: 'sort', onclick: () => sort(c)}, c.name)));
    const go = (to) => {
      page = Math.min(Math.max(to, 0), pages - 1);
      body.replaceChildren(...order.slice(page * kPage, (page + 1) * kPage).map((i) => el('tr', {}, columns.map((c, at) =>
        el(at === 0 ? 'th' : 'td', {scope: at === 0 ? 'row' : undefined, class: c.number ? 'n' : undefined}, c.cell(r, i))))));
      where.textContent = `page ${page + 1} of ${count(pages)}`;
      back.disabled = page === 0;
      on.disabled = page === pages - 1;
    };
    const sort = (c) => {
      sorted = {column: c, down: sorted.column === c ? !sorted.down : Boolean(c.number && c.key !== 'arrival')};
      const sign = sorted.down ? -1 : 1;
      order.sort((a, b) => {
        const left = c.by(r, a);
        const right = c.by(r, b);
        return left < right ? -sign : left > right ? sign : a - b;
      });
      mark();
      go(0);
    };
    const mark = () => heads.forEach((head, i) => {
      const is = columns[i] === sorted.column;
      head.firstChild.textContent = `${columns[i].name}${is ? (sorted.down ? ' ↓' : ' ↑') : ''}`;
      if (is) {
        head.setAttribute('aria-sort', sorted.down ? 'descending' : 'ascending');
      } else {
        head.removeAttribute('aria-sort');
      }
    });
    const back = el('button', {type: 'button', onclick: () => go(page - 1)}, 'Back');
    const on = el('button', {type: 'button', onclick: () => go(page + 1)}, 'Next');
    mark();
    go(0);
    return el('div', {}, el('div', {class: 'scroll'}, el('table', {id: 'request-table'}, el('thead', {}, el('tr', {}, heads)), body)),
      el('div', {class: 'pager'}, back, on, where));
  }

  function show(run) {
    const r = unpack(run.requests);
    if (r.rows === 0) {
      fill('requests');
      return;
    }
    const thinned = r.rows < r.total
      ? `${count(r.rows)} of ${count(r.total)}: the slowest of each kind, the most preempted, those that did not finish, and evenly spaced others. All are in requests.csv.`
      : 'In order of arrival; press a heading to sort.';
    const latency = run.totals.finished ? curves(run.requests.quantiles) : null;
    fill('requests',
      latency ? card('Latency', 'Of finished requests: time to the first token, per output token after it, and to the last.', csvButton('latency', () => [['percentile', 'ttft_s', 'tpot_s', 'latency_s'],
        ...run.requests.quantiles.latency.map((_, i) => [i, ...['ttft', 'tpot', 'latency'].map((key) => (run.requests.quantiles[key][i] ?? 0) / 1e9)])]),
      el('div', {class: 'two'}, el('div', {}, percentiles(run.totals)), el('div', {}, latency.plot, latency.key))) : null,
      card('Requests', thinned, csvButton('requests', () => [columns.map((c) => (c.key && c.number && !['input', 'output', 'cached', 'preemptions'].includes(c.key) ? `${c.key}_s` : c.key || c.name)),
        ...Array.from({length: r.rows}, (_, i) => columns.map((c) => (['arrival', 'queued', 'ttft', 'tpot', 'latency'].includes(c.key) ? (r[c.key][i] < 0 ? '' : r[c.key][i] / 1e9) : c.by(r, i))))]),
      requestTable(r)));
    if (latency) {
      latency.draw();
    }
  }

  return {show};
})();
