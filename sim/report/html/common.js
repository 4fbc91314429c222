'use strict';
// What all pages of oomcast share: the data, text of quantities, elements, tables, CSV files.
const oomcast = (() => {
  const data = JSON.parse(document.getElementById('data').textContent);

  // All text reaches the page through here, as text: nothing in the data is ever read as markup.
  function el(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith('on')) {
        node.addEventListener(name.slice(2), value);
      } else if (name === 'style') {
        Object.assign(node.style, value);
      } else if (value !== undefined && value !== false) {
        node.setAttribute(name, value === true ? '' : value);
      }
    }
    node.append(...children.flat().filter((child) => child !== undefined && child !== null));
    return node;
  }

  // A column as written: a first value and differences, or one number.
  function column(written, rows) {
    const values = new Float64Array(rows);
    if (typeof written === 'number') {
      return values.fill(written);
    }
    let sum = 0;
    for (let i = 0; i < rows; ++i) {
      sum += written[i];
      values[i] = sum;
    }
    return values;
  }

  const kGiB = 2 ** 30;
  function bytes(value) {
    const size = Math.abs(value);
    const sign = value < 0 ? '\u2212' : '';
    if (size >= kGiB) {
      return `${sign}${(size / kGiB).toFixed(2)} GiB`;
    }
    if (size >= 2 ** 20) {
      return `${sign}${(size / 2 ** 20).toFixed(1)} MiB`;
    }
    return size >= 1024 ? `${sign}${(size / 1024).toFixed(1)} KiB` : `${sign}${size} B`;
  }
  const count = (value) => value.toLocaleString('en-US', {maximumFractionDigits: 0});
  const share = (part, whole) => (whole > 0 ? `${(100 * part / whole).toFixed(1)} %` : '');
  function span(seconds) {
    if (seconds >= 3600) {
      const minutes = Math.floor(seconds / 60);
      return `${Math.floor(minutes / 60)}h ${String(minutes % 60).padStart(2, '0')}m`;
    }
    if (seconds >= 60) {
      const whole = Math.floor(seconds);
      return `${Math.floor(whole / 60)}m ${String(whole % 60).padStart(2, '0')}s`;
    }
    if (seconds >= 1) {
      return `${seconds.toFixed(2)} s`;
    }
    if (seconds === 0) {
      return '0 s';
    }
    return seconds >= 1e-3 ? `${(seconds * 1e3).toFixed(1)} ms` : `${(seconds * 1e6).toFixed(0)} \u00b5s`;
  }
  const signed = (value, text) => (value > 0 ? `+${text(value)}` : value === 0 ? '0' : text(value));

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  const classes = (c) => [c.number ? 'n' : '', c.style || ''].join(' ').trim() || undefined;
  // `columns`: {name, number, style, cell(row)}; a cell is text or an element. Of a table of the class
  // `barred` small screens show three columns and the bars below them, without columns of style `wide`.
  function table(columns, rows, attributes) {
    return el('div', {class: 'scroll'}, el('table', attributes,
      el('thead', {}, el('tr', {}, columns.map((c) => el('th', {scope: 'col', class: classes(c)}, c.name)))),
      el('tbody', {}, rows.map((row) => el('tr', {}, columns.map((c, i) => el(i === 0 ? 'th' : 'td',
        {scope: i === 0 ? 'row' : undefined, class: classes(c)}, c.cell(row))))))));
  }

  const csvCell = (value) => (Number.isNaN(value) ? '' : /[",\r\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
  // A button that saves what `rows()` gives, header first, as NAME.csv.
  function csvButton(name, rows) {
    return el('button', {type: 'button', title: `Save ${name}.csv`, onclick: () => {
      const text = rows().map((row) => row.map(csvCell).join(',')).join('\n') + '\n';
      const link = el('a', {download: `${name}.csv`, href: URL.createObjectURL(new Blob([text], {type: 'text/csv'}))});
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    }}, 'CSV');
  }

  // Title, one line of what it shows, tools at the right; what follows is the content.
  function card(title, about, tools, ...content) {
    return el('div', {class: 'card'},
      el('div', {class: 'head'}, el('h2', {}, title), el('span', {class: 'about'}, about || ''),
        el('span', {class: 'tools'}, tools || [])), ...content);
  }

  function fill(id, ...nodes) {
    document.getElementById(id).replaceChildren(...nodes.flat().filter(Boolean));
  }

  const outcomeTitle = (outcome) => ({served: 'It fits', startup_oom: 'Out of memory at startup', runtime_oom: 'Out of memory while serving',
    kv_too_small: 'The KV cache is too small', config_rejected: 'The engine refuses this configuration'}[outcome.kind] || outcome.kind);

  // "4 × NVIDIA H100 80GB HBM3  ·  vllm 0.19.0  ·  TP 4  ·  trace.csv: 500 requests"
  function subtitle(run) {
    const world = run.world;
    const cards = world.tp * world.pp * world.dp;
    return [`${cards > 1 ? `${cards} × ` : ''}${run.gpu}`, `${run.engine} ${run.engine_version}`,
      ...['tp', 'pp', 'dp', 'ep'].filter((name) => world[name] > 1).map((name) => `${name.toUpperCase()} ${world[name]}`),
      ...run.workload].join('  ·  ');
  }

  return {data, outcomeTitle, subtitle, el, column, kGiB, bytes, count, share, span, signed, colour, table, csvButton, card, fill};
})();
