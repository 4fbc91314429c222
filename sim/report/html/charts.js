'use strict';
// Charts over time with one cursor and one zoom.
oomcast.charts = (() => {
  const {el, colour, csvButton, card} = oomcast;

  // Unit of the time axis by the length of the run, so that ticks fall on round numbers.
  function timeUnit(seconds) {
    if (seconds > 36000) {
      return {name: 'h', seconds: 3600};
    }
    return seconds > 1200 ? {name: 'min', seconds: 60} : {name: 's', seconds: 1};
  }

  const shortNumber = (value) => {
    const size = Math.abs(value);
    if (size >= 1e6) {
      return `${+(value / 1e6).toFixed(2)}M`;
    }
    return size >= 1e4 ? `${+(value / 1e3).toFixed(1)}k` : String(+value.toFixed(3));
  };

  // Mouse as usual; fingers scroll the page.
  const mouseOnly = {};
  for (const name of ['mousedown', 'mousemove', 'mouseup', 'dblclick', 'willDestroyContextMyself']) {
    if (Dygraph.defaultInteractionModel[name] !== undefined) {
      mouseOnly[name] = Dygraph.defaultInteractionModel[name];
    }
  }

  // A dashed line across the chart with its name on it.
  function drawLevel(context, area, graph, level) {
    const y = graph.toDomYCoord(level.value);
    if (y < area.y + 1 || y > area.y + area.h) {
      return;
    }
    context.save();
    context.strokeStyle = colour('physical');
    context.fillStyle = colour('muted');
    context.setLineDash([5, 4]);
    context.beginPath();
    context.moveTo(area.x, Math.round(y) + 0.5);
    context.lineTo(area.x + area.w, Math.round(y) + 0.5);
    context.stroke();
    context.font = '12px system-ui, sans-serif';
    context.fillText(level.name, area.x + 6, y - 5);
    context.restore();
  }

  // The numbers beside a chart: every series at the cursor, or at the row of rest.
  function keyTable(spec) {
    const caption = el('caption', {});
    const cells = [];
    const row = (series) => {
      const cell = el('td', {class: 'n'});
      const part = spec.whole ? el('td', {class: 'n muted'}) : null;
      cells.push({cell, part, series});
      return el('tr', {class: series.sum ? 'sum' : undefined}, el('th', {scope: 'row'},
        series.colour ? el('span', {class: series.line || !spec.stacked ? 'swatch thin' : 'swatch', style: {background: series.colour}}) : null,
        series.name), cell, part);
    };
    // As they lie in the stack, the highest first.
    const listed = spec.stacked ? [...spec.series].reverse() : spec.series;
    const node = el('table', {class: 'key'}, caption,
      el('tbody', {}, [...listed, ...(spec.lines || []), ...(spec.sums || [])].map(row)));
    return {node, show(index) {
      caption.textContent = spec.when(index);
      for (const {cell, part, series} of cells) {
        cell.textContent = spec.text(series.values[index]);
        if (part) {
          part.textContent = oomcast.share(series.values[index], spec.whole);
        }
      }
    }};
  }

  // spec: {id, title, about, unit, time (seconds), series [{name, colour, values}], when(index), text(value)}
  // and, where wanted: stacked; scale (drawn is a value times this); lines, over a stack; sums, rows of the
  // table only; whole, of which the table shows shares; inSelector, the series shown in the range selector; level {name, value}; range; points instead of lines; tall; selector; rest, the row shown without a cursor;
  // marks [{index, label, title, open, style}]; open(index); tools.
  function chart(spec) {
    const unit = timeUnit(spec.time[spec.time.length - 1] || 0);
    const lines = spec.lines || [];
    const all = [...spec.series, ...lines];
    const plot = el('div', {class: spec.tall ? 'plot tall' : 'plot', tabindex: '0', role: 'application',
      'aria-label': `${spec.title}, ${spec.unit}, over time. Arrow keys move the cursor, plus and minus zoom, 0 shows the whole run.`});
    const key = keyTable(spec);
    const csv = csvButton(spec.id, () => [['time_s', ...all.map((s) => (spec.scale ? `${s.name}, bytes` : s.name))], ...Array.from(spec.time, (t, i) => [t, ...all.map((s) => s.values[i])])]);
    oomcast.fill(spec.id, card(spec.title, spec.about, [...(spec.tools || []), csv], el('div', {class: 'chart'}, plot, key.node)));

    let cursor = spec.rest || 0;
    const show = (row) => {
      cursor = row ?? (spec.rest || 0);
      key.show(cursor);
    };
    show();
    const rows = drawnRows(spec, lines, unit);
    const graph = new Dygraph(plot, rows, {
      ...look(spec, all, unit),
      series: seriesOptions(spec, lines),
      underlayCallback: (context, area, g) => spec.level && drawLevel(context, area, g, spec.level),
      highlightCallback: (event, x, points, row) => linked.forEach((one) => one.show(row)),
      unhighlightCallback: () => linked.forEach((one) => one.show()),
      clickCallback: () => spec.open && spec.open(cursor),
    });
    if (spec.marks && spec.marks.length) {
      graph.setAnnotations(spec.marks.map((mark) => ({
        series: spec.series[spec.series.length - 1].name, x: rows[mark.index][0], shortText: mark.label, text: mark.title,
        cssClass: mark.style ? `mark ${mark.style}` : 'mark', width: 18, height: 18, tickHeight: 4, clickHandler: mark.open})));
    }
    plot.addEventListener('keydown', (event) => keys(event, graph, cursor, (to) => graph.setSelection(to, undefined, undefined, true), spec));
    return {graph, show};
  }

  // A stack is drawn as sums, each filled down to the ground, the lowest last and over the others.
  function drawnRows(spec, lines, unit) {
    const scale = spec.scale || 1;
    return Array.from(spec.time, (t, i) => {
      const row = [t / unit.seconds];
      let sum = 0;
      for (const series of spec.series) {
        sum = spec.stacked ? sum + series.values[i] : series.values[i];
        row.push(sum * scale);
      }
      for (const line of lines) {
        row.push(line.values[i] * scale);
      }
      return row;
    });
  }

  function seriesOptions(spec, lines) {
    const options = {};
    for (const one of spec.series) {
      options[one.name] = {strokePattern: one.dash || null, showInRangeSelector: !spec.inSelector || one.name === spec.inSelector};
    }
    for (const line of lines) {
      options[line.name] = {fillGraph: false, strokeWidth: 1.5, strokePattern: line.dash || null};
    }
    return options;
  }

  function look(spec, all, unit) {
    return {
      labels: ['time', ...all.map((s) => s.name)], colors: all.map((s) => s.colour),
      fillGraph: Boolean(spec.stacked), fillAlpha: 1, stepPlot: !spec.points,
      strokeWidth: spec.stacked || spec.points ? 0 : 1.6, drawPoints: Boolean(spec.points), pointSize: 1.3, strokeBorderWidth: null,
      legend: 'never', highlightCircleSize: 2.5, includeZero: true, interactionModel: mouseOnly,
      xlabel: `time since the first arrival, ${unit.name}`, ylabel: spec.unit, xLabelHeight: 16, yLabelWidth: 18,
      axisLineColor: colour('line'), gridLineColor: colour('line'), gridLineWidth: 1,
      axes: {x: {drawGrid: false, axisLabelFormatter: shortNumber, pixelsPerLabel: 70},
        y: {axisLabelFormatter: shortNumber, valueRange: spec.range, axisLabelWidth: 46}},
      showRangeSelector: Boolean(spec.selector), rangeSelectorHeight: 28,
      rangeSelectorPlotFillColor: colour('line'), rangeSelectorPlotFillGradientColor: colour('line'), rangeSelectorPlotStrokeColor: colour('muted'), rangeSelectorPlotLineWidth: 1,
      rangeSelectorBackgroundStrokeColor: colour('line'), rangeSelectorForegroundStrokeColor: colour('muted'), rangeSelectorAlpha: 0.5,
    };
  }

  function keys(event, graph, cursor, move, spec) {
    const step = event.shiftKey ? Math.max(1, Math.round(graph.numRows() / 50)) : 1;
    const action = {
      ArrowLeft: () => move(Math.max(0, cursor - step)),
      ArrowRight: () => move(Math.min(graph.numRows() - 1, cursor + step)),
      '+': () => zoom(graph, 0.5), '=': () => zoom(graph, 0.5), '-': () => zoom(graph, 2),
      0: () => reset(graph), Enter: () => spec.open && spec.open(cursor),
    }[event.key];
    if (action) {
      event.preventDefault();
      action();
    }
  }

  function zoom(graph, factor, shift = 0) {
    const [left, right] = graph.xAxisRange();
    const [first, last] = graph.xAxisExtremes();
    const width = Math.min((right - left) * factor, last - first);
    const middle = (left + right) / 2 + shift * (right - left);
    const from = Math.min(Math.max(middle - width / 2, first), last - width);
    graph.updateOptions({dateWindow: [from, from + width]});
  }
  const reset = (graph) => graph.resetZoom();

  // The charts whose numbers follow one cursor; all have the same rows.
  let linked = [];

  // Charts that share cursor and zoom, and the buttons for the zoom in the element `id`. Returns what
  // takes them down.
  function link(charts, id) {
    linked = charts;
    const graphs = charts.map((one) => one.graph);
    const sync = graphs.length > 1 ? Dygraph.synchronize(graphs, {zoom: true, selection: true, range: false}) : null;
    const button = (text, title, act) => el('button', {type: 'button', title, 'aria-label': title, onclick: () => act(graphs[0])}, text);
    oomcast.fill(id, graphs.length === 0 ? [] : [
      button('\u2190', 'Earlier', (g) => zoom(g, 1, -0.5)), button('+', 'Zoom in', (g) => zoom(g, 0.5)),
      button('\u2212', 'Zoom out', (g) => zoom(g, 2)), button('\u2192', 'Later', (g) => zoom(g, 1, 0.5)),
      button('All', 'Whole run', reset)]);
    return () => {
      if (sync) {
        sync.detach();
      }
      graphs.forEach((graph) => graph.destroy());
    };
  }

  return {chart, link};
})();
