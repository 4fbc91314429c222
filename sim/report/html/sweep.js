'use strict';
// The points of a sweep: which fit, how two settings trade, which are the best.
(() => {
  const {data, el, bytes, count, span, colour, csvButton, card, fill} = oomcast;
  const points = data.points.map((row, at) => ({at, settings: row[0], values: row[1], front: row[2] === 1}));
  const varied = data.varied;
  const columns = data.columns;
  const kPage = 40;
  const indexOf = (name) => columns.findIndex((column) => column.name === name);
  const outcomeAt = indexOf('outcome');
  const fits = (point) => point.values[outcomeAt] === 'served';
  const svg = (tag, attributes, ...children) => {
    const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      node.setAttribute(name, value);
    }
    node.append(...children.flat());
    return node;
  };

  // ---- quantities -------------------------------------------------------------------------------

  function shown(name, value) {
    if (value === null || value === undefined || value === '') {
      return '–';
    }
    if (typeof value !== 'number') {
      return String(value);
    }
    if (name.endsWith('_bytes')) {
      return bytes(value);
    }
    if (name.endsWith('_s')) {
      return span(value);
    }
    return Number.isInteger(value) ? count(value) : value.toLocaleString('en-US', {maximumFractionDigits: 2});
  }
  const plain = (name) => name.replaceAll('_', ' ').replace(/ (bytes|s)$/, '');
  // Figures that a point can be judged by: judged ones first.
  const figures = [...new Set([...data.judged_by.map((measure) => measure.name), ...columns.map((column) => column.name)])]
    .filter((name) => points.some((point) => typeof point.values[indexOf(name)] === 'number'));
  const isMore = (name) => data.judged_by.find((measure) => measure.name === name)?.better !== 'less' && !/_s$|gpus|cost|peak/.test(name);
  const label = (point) => point.settings.map((value, i) => `${varied[i]} ${value}`).join(', ');

  function choice(name, options, chosen, act) {
    const select = el('select', {'aria-label': name, onchange: () => act(select.value)},
      options.map(([value, text]) => el('option', {value, selected: value === chosen}, text)));
    return el('label', {class: 'muted'}, `${name} `, select);
  }

  // ---- heading ----------------------------------------------------------------------------------

  function heading() {
    fill('title', data.title);
    fill('subtitle', data.subtitle);
    const kinds = new Map();
    for (const point of points) {
      kinds.set(point.values[outcomeAt], (kinds.get(point.values[outcomeAt]) || 0) + 1);
    }
    const good = kinds.get('served') || 0;
    fill('verdict', el('div', {class: good ? 'card verdict' : 'card verdict bad'},
      el('h2', {}, good ? `${count(good)} of ${count(points.length)} points fit` : 'No point fits'),
      el('p', {}, [...kinds].filter(([kind]) => kind !== 'served').map(([kind, n]) => `${count(n)} ${plain(kind)}`).join(', ')),
      data.total > points.length ? el('p', {class: 'muted'}, `${count(data.total)} points were run; this page shows ${count(points.length)} of them, all of the best among them. points.csv has all.`) : null));
    const tiles = data.judged_by.map((measure) => {
      const at = indexOf(measure.name);
      const sign = measure.better === 'more' ? 1 : -1;
      const able = points.filter((point) => fits(point) && typeof point.values[at] === 'number');
      const best = able.reduce((top, point) => (top === null || sign * point.values[at] > sign * top.values[at] ? point : top), null);
      return best && el('div', {class: 'tile'}, el('dt', {}, `${measure.better === 'more' ? 'most' : 'least'} ${plain(measure.name)}`),
        el('dd', {}, shown(measure.name, best.values[at]), el('small', {}, label(best))));
    });
    fill('tiles', tiles);
    document.getElementById('tiles').style.gridTemplateColumns = `repeat(auto-fit, minmax(${tiles.length > 3 ? '9rem' : '13rem'}, 1fr))`;
  }

  // ---- two settings against each other ------------------------------------------------------------

  const valuesOf = (axis) => [...new Set(points.map((point) => point.settings[axis]))];
  function map() {
    if (varied.length < 2) {
      return;
    }
    const byCount = varied.map((_, i) => i).sort((a, b) => valuesOf(b).length - valuesOf(a).length);
    const state = {x: byCount[0], y: byCount[1], figure: figures[0]};
    const draw = () => {
      const xs = valuesOf(state.x);
      const ys = valuesOf(state.y);
      const at = indexOf(state.figure);
      const sign = isMore(state.figure) ? 1 : -1;
      const cells = new Map();
      for (const point of points) {
        const key = `${point.settings[state.x]}\u0000${point.settings[state.y]}`;
        const before = cells.get(key);
        const able = fits(point) && typeof point.values[at] === 'number';
        if (!before || (able && (!before.able || sign * point.values[at] > sign * before.point.values[at]))) {
          cells.set(key, {point, able});
        }
      }
      const values = [...cells.values()].filter((cell) => cell.able).map((cell) => cell.point.values[at]);
      const low = Math.min(...values);
      const high = Math.max(...values);
      const head = el('tr', {}, el('th', {scope: 'col'}, `${varied[state.y]} \\ ${varied[state.x]}`), xs.map((x) => el('th', {scope: 'col', class: 'n'}, x)));
      const body = ys.map((y) => el('tr', {}, el('th', {scope: 'row'}, y), xs.map((x) => {
        const cell = cells.get(`${x}\u0000${y}`);
        if (!cell) {
          return el('td', {class: 'n muted'}, '');
        }
        if (!cell.able) {
          return el('td', {class: 'n', style: {color: colour('bad')}, title: cell.point.values[indexOf('reason')] || ''}, plain(String(cell.point.values[outcomeAt])));
        }
        const value = cell.point.values[at];
        const strength = high > low ? (value - low) / (high - low) : 1;
        return el('td', {class: 'n', title: label(cell.point), style: {background: `color-mix(in srgb, ${colour('model')} ${Math.round(8 + 42 * (sign > 0 ? strength : 1 - strength))}%, transparent)`}}, shown(state.figure, value));
      })));
      const axes = varied.map((name, i) => [String(i), name]);
      const tools = [choice('across', axes, String(state.x), (value) => { state.x = +value; draw(); }),
        choice('down', axes, String(state.y), (value) => { state.y = +value; draw(); }),
        choice('figure', figures.map((name) => [name, plain(name)]), state.figure, (value) => { state.figure = value; draw(); }),
        csvButton('map', () => [[`${varied[state.y]}`, ...xs], ...ys.map((y) => [y, ...xs.map((x) => {
          const cell = cells.get(`${x}\u0000${y}`);
          return cell && cell.able ? cell.point.values[at] : '';
        })])])];
      fill('map', card('Two settings', varied.length > 2 ? 'The best over all other settings in each cell; darker is better.' : 'Darker is better.', tools,
        el('div', {class: 'scroll'}, el('table', {id: 'heat'}, el('thead', {}, head), el('tbody', {}, body)))));
    };
    draw();
  }

  // ---- what trades against what -------------------------------------------------------------------

  function scatter() {
    const state = {x: figures[1] || figures[0], y: figures[0]};
    const draw = () => {
      const [ax, ay] = [indexOf(state.x), indexOf(state.y)];
      const able = points.filter((point) => fits(point) && typeof point.values[ax] === 'number' && typeof point.values[ay] === 'number');
      const [w, h, left, bottom] = [860, 360, 96, 40];
      const range = (at) => {
        const values = able.map((point) => point.values[at]);
        const [low, high] = [Math.min(...values), Math.max(...values)];
        const edge = high > low ? (high - low) * 0.04 : Math.abs(high) * 0.05 || 1;
        return [low - edge, high + edge];
      };
      let plot = el('p', {class: 'muted'}, 'No point has both figures.');
      if (able.length) {
        const [x0, x1] = range(ax);
        const [y0, y1] = range(ay);
        const px = (value) => left + (value - x0) / (x1 - x0) * (w - left - 12);
        const py = (value) => 12 + (y1 - value) / (y1 - y0) * (h - 12 - bottom);
        const ticks = (a, b) => [0.1, 0.3, 0.5, 0.7, 0.9].map((share) => a + share * (b - a));
        const round = (name, value) => (name.endsWith('_bytes') || name.endsWith('_s') ? value : +value.toPrecision(3));
        const marks = [
          ...ticks(x0, x1).map((value) => svg('text', {x: px(value), y: h - 22, 'text-anchor': 'middle', fill: colour('muted'), 'font-size': 11}, shown(state.x, round(state.x, value)))),
          ...ticks(y0, y1).flatMap((value) => [svg('line', {x1: left, x2: w - 12, y1: py(value), y2: py(value), stroke: colour('line')}),
            svg('text', {x: left - 8, y: py(value) + 4, 'text-anchor': 'end', fill: colour('muted'), 'font-size': 11}, shown(state.y, round(state.y, value)))]),
          svg('text', {x: (left + w) / 2, y: h - 4, 'text-anchor': 'middle', fill: colour('muted'), 'font-size': 12}, plain(state.x)),
          svg('text', {x: 14, y: (h - bottom) / 2, 'text-anchor': 'middle', fill: colour('muted'), 'font-size': 12, transform: `rotate(-90 14 ${(h - bottom) / 2})`}, plain(state.y))];
        const dots = [...able].sort((a, b) => a.front - b.front).map((point) => svg('circle', {cx: px(point.values[ax]), cy: py(point.values[ay]), r: point.front ? 4.5 : 3,
          fill: point.front ? colour('line-b') : colour('line-a'), 'fill-opacity': point.front ? 0.95 : 0.35},
        svg('title', {}, `${label(point)}: ${plain(state.y)} ${shown(state.y, point.values[ay])}, ${plain(state.x)} ${shown(state.x, point.values[ax])}`)));
        plot = svg('svg', {viewBox: `0 0 ${w} ${h}`, role: 'img', 'aria-label': `${plain(state.y)} against ${plain(state.x)}, a dot a point`, style: 'width:100%;height:auto', id: 'dots'}, marks, dots);
      }
      const options = figures.map((name) => [name, plain(name)]);
      fill('scatter', card('What trades against what', 'Orange: no point is better in all of what they are judged by.',
        [choice('up', options, state.y, (value) => { state.y = value; draw(); }), choice('across', options, state.x, (value) => { state.x = value; draw(); }),
          csvButton('dots', () => [[...varied, state.x, state.y, 'best'], ...able.map((point) => [...point.settings, point.values[ax], point.values[ay], point.front ? 'yes' : 'no'])])], plot));
    };
    draw();
  }

  // ---- every point ----------------------------------------------------------------------------------

  function table() {
    const isEmpty = (value) => value === null || value === '' || value === 0;
    const cells = [...varied.map((name, i) => ({name, number: false, by: (point) => (Number.isNaN(+point.settings[i]) ? point.settings[i] : +point.settings[i]), text: (point) => point.settings[i]})),
      ...columns.map((column, i) => ({name: plain(column.name), number: points.some((point) => typeof point.values[i] === 'number'), by: (point) => point.values[i] ?? -Infinity, text: (point) => shown(column.name, point.values[i]), at: i}))];
    const state = {page: 0, by: null, down: false, only: points.some((point) => point.front) ? 'best' : 'all'};
    const kept = {best: (point) => point.front, fit: fits, not: (point) => !fits(point), all: () => true};
    const draw = () => {
      const rows = points.filter(kept[state.only]);
      if (state.by !== null) {
        const sign = state.down ? -1 : 1;
        const by = cells[state.by].by;
        rows.sort((a, b) => (by(a) < by(b) ? -sign : by(a) > by(b) ? sign : a.at - b.at));
      }
      const pages = Math.max(1, Math.ceil(rows.length / kPage));
      state.page = Math.min(state.page, pages - 1);
      const filled = cells.filter((cell) => cell.at === undefined || rows.some((point) => !isEmpty(point.values[cell.at])));
      const heads = filled.map((cell) => [cell, cells.indexOf(cell)]).map(([cell, i]) => el('th', {scope: 'col', class: cell.number ? 'n' : undefined, 'aria-sort': state.by === i ? (state.down ? 'descending' : 'ascending') : undefined},
        el('button', {type: 'button', class: 'sort', onclick: () => { state.down = state.by === i ? !state.down : cell.number; state.by = i; draw(); }}, `${cell.name}${state.by === i ? (state.down ? ' ↓' : ' ↑') : ''}`)));
      const body = rows.slice(state.page * kPage, (state.page + 1) * kPage).map((point) => el('tr', {}, filled.map((cell, i) =>
        el(i === 0 ? 'th' : 'td', {scope: i === 0 ? 'row' : undefined, class: cell.number ? 'n' : undefined}, cell.text(point)))));
      const turn = (by, text, disabled) => el('button', {type: 'button', disabled, onclick: () => { state.page += by; draw(); }}, text);
      fill('points', card('Points', `${count(rows.length)} points`, [
        choice('show', [['best', 'the best'], ['fit', 'what fits'], ['not', 'what does not fit'], ['all', 'all']], state.only, (value) => { state.only = value; state.page = 0; draw(); }),
        csvButton('points', () => [[...varied, ...columns.map((column) => column.name), 'best'], ...rows.map((point) => [...point.settings, ...point.values.map((value) => value ?? ''), point.front ? 'yes' : 'no'])])],
      el('div', {class: 'scroll'}, el('table', {id: 'point-table'}, el('thead', {}, el('tr', {}, heads)), el('tbody', {}, body))),
      el('div', {class: 'pager'}, turn(-1, 'Back', state.page === 0), turn(1, 'Next', state.page === pages - 1), el('span', {}, `page ${state.page + 1} of ${count(pages)}`))));
    };
    draw();
  }

  heading();
  map();
  scatter();
  table();
  fill('footer', el('p', {}, data.footer));
})();
