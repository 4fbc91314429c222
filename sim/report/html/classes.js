'use strict';
// The classes of memory as people look at them: colours, the order in the stack, tables of what was
// alive at one instant.
oomcast.classes = (() => {
  const {data, el, column, bytes, share, colour, table} = oomcast;
  const leafNames = data.leaf_names;
  const leavesOf = (prefix) => leafNames.map((name, i) => (name.startsWith(prefix) ? i : -1)).filter((i) => i >= 0);

  // From the ground up: what stands still first, what moves on top.
  const groups = [
    {key: 'model', name: 'Model', leaves: leavesOf('model.')},
    {key: 'context', name: 'Context and libraries', leaves: leavesOf('system.context')},
    {key: 'graph', name: 'CUDA graphs', leaves: leavesOf('graph.')},
    {key: 'comm', name: 'Communication', leaves: leavesOf('comm.')},
    {key: 'kv-meta', name: 'KV metadata, transfer', leaves: [...leavesOf('kv.metadata'), ...leavesOf('kv.transfer')]},
    {key: 'kv-used', name: 'KV cache', leaves: leavesOf('kv.pool')},
    {key: 'workspace', name: 'Kernel workspace', leaves: leavesOf('workspace.')},
    {key: 'runtime', name: 'Runtime tensors', leaves: leavesOf('runtime.')},
    {key: 'cached', name: 'Allocator cache', leaves: leavesOf('system.cached')},
    {key: 'fragmentation', name: 'Fragmentation', leaves: leavesOf('system.fragmentation')},
  ];
  const groupOf = (leaf) => groups.find((group) => group.leaves.includes(leaf));
  const sumOf = (group, live) => group.leaves.reduce((sum, leaf) => sum + live[leaf], 0);

  // Columns of one rank, unpacked once.
  function unpack(rank) {
    if (!rank.unpacked) {
      const s = rank.series;
      const n = rank.rows;
      const out = {rows: n, time: column(s.time_ns, n).map((t) => t / 1e9), leaves: s.leaves.map((c) => column(c, n))};
      for (const name of ['kv_used', 'kv_cached', 'kv_free', 'allocated', 'reserved', 'pinned', 'running', 'waiting', 'step_tokens', 'preemptions']) {
        out[name] = column(s[name], n);
      }
      out.used = sum(out.leaves, n);
      rank.unpacked = out;
    }
    return rank.unpacked;
  }
  function sum(columns, rows) {
    const out = new Float64Array(rows);
    for (const one of columns) {
      for (let i = 0; i < rows; ++i) {
        out[i] += one[i];
      }
    }
    return out;
  }
  const highest = (values) => values.reduce((most, value) => Math.max(most, value), 0);
  const lowest = (values) => values.reduce((least, value) => Math.min(least, value), Infinity);
  // Index of the first of the highest values.
  const highestAt = (values) => values.indexOf(highest(values));

  const swatch = (key) => el('span', {class: 'swatch', style: {background: colour(key)}});

  // A share of `whole` as a bar from `from` on.
  const bar = (parts, whole) => el('div', {class: 'track', 'aria-hidden': 'true'}, parts.map((part) => el('i', {style: {
    left: `${100 * part.from / whole}%`, width: `${Math.max(100 * part.size / whole, part.size > 0 ? 0.25 : 0)}%`, background: part.colour}})));

  // Every leaf alive at one instant, the largest first.
  function liveTable(live, total) {
    const used = live.reduce((all, part) => all + part, 0);
    const rows = live.map((size, leaf) => ({size, leaf})).filter((row) => row.size > 0).sort((a, b) => b.size - a.size);
    return table([
      {name: 'class', cell: (row) => [row.leaf < 0 ? null : swatch(groupOf(row.leaf).key), row.leaf < 0 ? row.name : leafNames[row.leaf]]},
      {name: 'bytes', number: true, cell: (row) => bytes(row.size)},
      {name: 'of the card', number: true, cell: (row) => share(row.size, total)},
      {name: '', style: 'bars', cell: (row) => (row.leaf < 0 ? '' : bar([{from: 0, size: row.size, colour: colour(groupOf(row.leaf).key)}], total))},
    ], [...rows, {leaf: -1, name: 'in use', size: used}, {leaf: -1, name: 'free', size: total - used}], {class: 'barred'});
  }

  return {groups, groupOf, sumOf, unpack, sum, highest, lowest, highestAt, swatch, bar, liveTable, leafNames};
})();
