#!/usr/bin/env python3
"""The pages in headless Chromium: they open from disk with no error and no request to anywhere, charts are
drawn, and rank, zoom, cursor, keys, dialogs, sorting and downloads act. Screenshots are compared with those
in results/reference.

    page_test.py PROGRAM [--update]

Skips (77) where Chromium or python3-websocket is not installed. --update writes new reference pictures.
"""
import csv
import importlib.util
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

SKIPPED = 77
if importlib.util.find_spec("websocket") is None:
    print("skipped: python3-websocket is not installed")
    sys.exit(SKIPPED)
import browser  # noqa: E402  (needs websocket)

if browser.chromium() is None:
    print("skipped: chromium is not installed")
    sys.exit(SKIPPED)

ROOT = pathlib.Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "results" / "reference"
UPDATE = "--update" in sys.argv
PROGRAM = next(word for word in sys.argv[1:] if not word.startswith("--"))
SAMPLE = ROOT / "workloads" / "samples" / "azure_conv_500.csv"
LLAMA_8B = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 16384"
LLAMA_70B = "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 4 -pp 2 --max-model-len 8192"
BUSY = "poisson:rate=60,requests={},input=lognormal(1024,0.8),output=uniform(64,512)"
DESK = (1360, 900)
PHONE = (390, 844)


def replay(folder, name, launch, *words):
    out = folder / name
    done = subprocess.run([PROGRAM, "replay", "--gpu", "H100-80GB", "--engine-version", "0.19.0",
                           "--launch", launch, "--out", out, *words],
                          stdout=subprocess.DEVNULL, check=False)
    assert done.returncode in (0, 3), name
    return out


def pixels(path):
    """Rows of RGB bytes of a PNG as Chromium writes it: 8 bits, no interlace."""
    data = path.read_bytes()
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    assert depth == 8 and kind in (2, 6)
    size = 3 if kind == 2 else 4
    packed = b""
    at = 8
    while at < len(data):
        length, name = struct.unpack(">I4s", data[at:at + 8])
        if name == b"IDAT":
            packed += data[at + 8:at + 8 + length]
        at += 12 + length
    raw = zlib.decompress(packed)
    rows, before = [], bytearray(width * size)
    for y in range(height):
        start = y * (width * size + 1)
        row = unfiltered(raw[start], bytearray(raw[start + 1:start + 1 + width * size]), before, size)
        rows.append(row)
        before = row
    return width, height, size, rows


def unfiltered(kind, row, before, size):
    for i in range(len(row)):
        left = row[i - size] if i >= size else 0
        up = before[i]
        corner = before[i - size] if i >= size else 0
        if kind == 1:
            add = left
        elif kind == 2:
            add = up
        elif kind == 3:
            add = (left + up) // 2
        elif kind == 4:
            guess = left + up - corner
            add = min((abs(guess - left), 0, left), (abs(guess - up), 1, up),
                      (abs(guess - corner), 2, corner))[2]
        else:
            add = 0
        row[i] = (row[i] + add) & 255
    return row


def tiles(path, side=40):
    """Mean colours of squares: text may be set otherwise elsewhere, charts and cards may not."""
    width, height, size, rows = pixels(path)
    means = []
    for top in range(0, height - side + 1, side):
        for left in range(0, width - side + 1, side):
            sums = [0, 0, 0]
            for row in rows[top:top + side:4]:
                for x in range(left, left + side, 4):
                    for channel in range(3):
                        sums[channel] += row[x * size + channel]
            means.append([total / (side // 4) ** 2 for total in sums])
    return (width, height), means


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory()
        folder = cls.folder = pathlib.Path(cls.place.name)
        cls.small = replay(folder, "small", LLAMA_8B, "--trace", SAMPLE)
        cls.ranks = replay(folder, "ranks", LLAMA_70B, "--synthetic", BUSY.format(2000))
        cls.failed = replay(folder, "failed", LLAMA_70B + " --gpu-memory-utilization 0.98 --max-num-batched-tokens 32768",
                            "--synthetic", BUSY.format(100))
        cls.large = replay(folder, "large", LLAMA_8B, "--synthetic", BUSY.format(100000))
        cls.compared = folder / "compared.html"
        fp8 = replay(folder, "fp8", LLAMA_8B + " --kv-cache-dtype fp8 --max-num-seqs 16", "--trace", SAMPLE)
        subprocess.run([PROGRAM, "report", cls.small, "--compare", fp8, "--out", cls.compared],
                       check=True, stdout=subprocess.DEVNULL)
        cls.browser = browser.Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.place.cleanup()

    def open(self, page, size=DESK, dark=False):
        self.browser.errors.clear()
        self.browser.requests.clear()
        self.browser.view(*size, dark=dark, mobile=size == PHONE)
        return self.browser.open(page)

    def tearDown(self):
        self.assertEqual(self.browser.errors, [])
        away = [url for url in self.browser.requests if not url.startswith(("file:", "data:", "blob:"))]
        self.assertEqual(away, [])

    def run_js(self, script):
        return self.browser.run(script)

    def coloured(self, section):
        """How many pixels of a chart are not transparent, and how many colours they have."""
        return self.run_js(f"""(() => {{
            const canvas = document.querySelector('#{section} canvas');
            const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            const colours = new Set();
            let drawn = 0;
            for (let i = 0; i < data.length; i += 4) {{
              if (data[i + 3] > 0) {{ ++drawn; colours.add((data[i] << 16) + (data[i + 1] << 8) + data[i + 2]); }}
            }}
            return [drawn, colours.size];
        }})()""")

    # ---- opening --------------------------------------------------------------------------------

    def test_every_chart_is_drawn_light_dark_and_on_a_phone(self):
        for size in (DESK, PHONE):
            for dark in (False, True):
                self.open(self.small / "report.html", size, dark)
                for section in ("memory", "moving", "kv", "load", "steps"):
                    drawn, colours = self.coloured(section)
                    self.assertGreater(drawn, 200, section)
                    self.assertGreater(colours, 1, section)
                self.assertLessEqual(self.run_js("document.documentElement.scrollWidth"), size[0])

    def test_a_hundred_thousand_requests_open_in_two_seconds(self):
        page = self.large / "report.html"
        self.assertLess(page.stat().st_size, 10_000_000)
        taken = min(self.open(page) for _ in range(3))
        print(f"100,000 requests: {page.stat().st_size / 1e6:.1f} MB, open in {taken:.2f} s")
        self.assertLess(taken, 2.0)
        self.assertIn("of 100,000", self.run_js("document.getElementById('requests').textContent"))

    def test_a_run_that_failed_says_why_and_what_helps(self):
        self.open(self.failed / "report.html")
        text = self.run_js("document.getElementById('verdict').textContent")
        self.assertIn("Out of memory at startup", text)
        self.assertIn("short", text)
        self.assertIn("--max-num-seqs", text)
        self.assertIn("Nothing was served", self.run_js("document.getElementById('memory').textContent"))
        self.assertGreater(self.run_js("document.querySelectorAll('#startup tbody tr').length"), 4)

    # ---- acting ---------------------------------------------------------------------------------

    def zoom_of(self, section):
        """The numbers along the time axis of a chart."""
        return self.run_js(f"[...document.querySelectorAll('#{section} .dygraph-axis-label-x')].map(one => one.textContent).join(' ')")

    def test_zoom_is_linked_by_buttons_and_keys(self):
        self.open(self.small / "report.html")
        whole = [self.zoom_of(section) for section in ("memory", "kv", "load")]
        self.run_js("document.querySelector('#zoom button[title=\"Zoom in\"]').click()")
        zoomed = [self.zoom_of(section) for section in ("memory", "kv", "load")]
        self.assertNotEqual(zoomed, whole)
        self.assertEqual(len(set(zoomed)), 1)
        self.run_js("document.querySelector('#load .plot').focus()")
        self.browser.key("0")
        self.assertEqual([self.zoom_of(section) for section in ("memory", "kv", "load")], whole)
        self.browser.key("+")
        self.assertEqual(self.zoom_of("memory"), zoomed[0])

    def test_the_cursor_is_linked_and_moves_by_keys(self):
        self.open(self.small / "report.html")
        caption = "document.querySelector('#{} caption').textContent"
        self.run_js("document.querySelector('#kv .plot').focus()")
        before = self.run_js(caption.format("kv"))
        self.browser.key("ArrowRight")
        self.assertNotEqual(self.run_js(caption.format("kv")), before)
        self.assertEqual(self.run_js(caption.format("memory")), self.run_js(caption.format("kv")))

    def test_enter_opens_what_was_alive(self):
        self.open(self.small / "report.html")
        self.run_js("document.querySelector('#memory .plot').focus()")
        self.browser.key("ArrowRight")
        self.run_js("document.querySelector('#memory .plot').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}))")
        dialog = self.run_js("document.getElementById('dialog').open && document.getElementById('dialog').textContent")
        self.assertIn("model.weights", dialog)
        self.assertIn("kv.pool", dialog)
        self.run_js("document.querySelector('#dialog button').click()")
        self.assertFalse(self.run_js("document.getElementById('dialog').open"))

    def test_peak_markers_and_peaks_open_their_witness(self):
        self.open(self.ranks / "report.html")
        self.run_js("document.querySelector('#kv .mark').click()")
        self.assertIn("kv.pool", self.run_js("document.getElementById('dialog').textContent"))
        self.run_js("document.querySelector('#dialog button').click()")
        self.run_js("document.querySelector('#peaks tbody button').click()")
        self.assertIn("All that was alive", self.run_js("document.getElementById('dialog').textContent"))

    def test_another_rank_shows_other_numbers(self):
        self.open(self.ranks / "report.html")
        shown = [self.run_js("document.getElementById('startup').textContent")]
        self.assertEqual(self.run_js("document.getElementById('rank').options.length"), 2)
        self.run_js("""(() => { const select = document.getElementById('rank');
            select.selectedIndex = 1 - select.selectedIndex; select.dispatchEvent(new Event('change')); })()""")
        shown.append(self.run_js("document.getElementById('startup').textContent"))
        self.assertNotEqual(shown[0], shown[1])
        self.assertGreater(self.coloured("memory")[0], 200)
        self.run_js("document.querySelector('#zoom button[title=\"Zoom in\"]').click()")
        self.assertEqual(self.zoom_of("memory"), self.zoom_of("kv"))

    def edited(self, name, edit):
        """A page of the run of two kinds of ranks with its record changed."""
        run = self.folder / name
        shutil.copytree(self.ranks, run)
        record = json.loads((run / "record.json").read_text())
        edit(record)
        (run / "record.json").write_text(json.dumps(record))
        subprocess.run([PROGRAM, "report", run, "--replace", "--out", run], check=True,
                       stdout=subprocess.DEVNULL)
        return run / "report.html"

    def test_roles_narrow_the_choice_of_ranks(self):
        def edit(record):
            for rank in record["plan"]["ranks"]:
                rank["role"] = "prefill" if rank["rank"] < 4 else "decode"
        self.open(self.edited("roles", edit))
        options = "[...document.getElementById('rank').options].map(one => one.textContent)"
        self.assertEqual(len(self.run_js(options)), 2)
        self.run_js("""(() => { const select = document.getElementById('role');
            select.value = 'prefill'; select.dispatchEvent(new Event('change')); })()""")
        self.assertEqual(self.run_js(options), ["rank 0 (stands for 4 alike)"])
        self.run_js("document.querySelector('#peaks tbody button').click()")
        self.assertIn("rank 0", self.run_js("document.getElementById('dialog').textContent"))

    def test_text_of_the_input_stays_text(self):
        hostile = "</script><img src=x onerror=document.title='gone'>"
        def edit(record):
            record["plan"]["model"] = hostile
            record["plan"]["warnings"] = [hostile]
            record["outcome"]["message"] = hostile
            record["workload"][0]["source"] = hostile
        self.open(self.edited("hostile", edit))
        self.assertEqual(self.run_js("document.getElementById('title').textContent"), hostile)
        self.assertIn(hostile, self.run_js("document.title"))
        self.assertIsNone(self.run_js("document.querySelector('img[onerror]')"))

    def test_requests_are_sorted_and_paged(self):
        self.open(self.small / "report.html")
        first = "document.querySelector('#request-table tbody tr').cells[{}].textContent"
        self.assertEqual(self.run_js(first.format(0)), "0")
        self.run_js("document.querySelectorAll('#request-table th button')[6].click()")  # prompt
        longest = int(self.run_js(first.format(6)).replace(",", ""))
        lengths = [int(line.split(",")[5]) for line in (self.small / "requests.csv").read_text().splitlines()[1:]]
        self.assertEqual(longest, max(lengths))
        self.run_js("document.querySelectorAll('#request-table th button')[6].click()")
        self.assertEqual(int(self.run_js(first.format(6)).replace(",", "")), min(lengths))
        self.run_js("document.querySelectorAll('.pager button')[1].click()")
        self.assertIn("page 2", self.run_js("document.querySelector('.pager').textContent"))

    def test_every_chart_and_table_saves_its_data(self):
        self.open(self.small / "report.html")
        saved = self.run_js("""(async () => {
            const files = {};
            const make = URL.createObjectURL;
            const blobs = [];
            URL.createObjectURL = (blob) => { blobs.push(blob); return make(blob); };
            HTMLAnchorElement.prototype.click = function () { files[this.download] = blobs.length - 1; };
            document.querySelectorAll('.tools button[title^=Save]').forEach((button) => button.click());
            for (const name of Object.keys(files)) { files[name] = await blobs[files[name]].text(); }
            return files;
        })()""")
        self.assertEqual(set(saved), {f"{name}.csv" for name in (
            "memory", "moving", "kv", "load", "steps", "budget", "startup", "peaks", "latency", "requests", "assumptions")})
        written = (self.small / "timeline.csv").read_text().splitlines()
        column = written[0].split(",").index("kv_used_bytes")
        used = [line.split(",")[column] for line in written[1 + 8:]]
        rows = list(csv.DictReader(saved["kv.csv"].splitlines()))
        self.assertEqual([row["in use, bytes"] for row in rows], used)
        self.assertEqual(len(saved["requests.csv"].splitlines()), 501)

    def test_two_runs_side_by_side(self):
        for size in (DESK, PHONE):
            self.open(self.compared, size)
            for section in ("memory", "kv", "load", "waiting"):
                self.assertGreater(self.coloured(section)[0], 100, section)
            self.assertLessEqual(self.run_js("document.documentElement.scrollWidth"), size[0])
        self.assertIn("kv_cache_dtype", self.run_js("document.getElementById('settings').textContent"))
        self.assertEqual(self.run_js("document.querySelectorAll('#classes .card').length"), 2)

    # ---- looks ----------------------------------------------------------------------------------

    def test_screenshots_are_as_kept(self):
        for name, page, size, dark in (("report-light", self.small / "report.html", DESK, False),
                                       ("report-dark", self.ranks / "report.html", DESK, True),
                                       ("report-phone", self.small / "report.html", PHONE, False),
                                       ("compare-light", self.compared, DESK, False)):
            with self.subTest(name):
                self.open(page, size, dark)
                kept = REFERENCE / f"{name}.png"
                taken = kept if UPDATE else self.folder / f"{name}.png"
                self.browser.screenshot(taken)
                if not UPDATE:
                    self.compare(kept, taken)

    def compare(self, kept, taken):
        expected_size, expected = tiles(kept)
        size, found = tiles(taken)
        self.assertEqual(size, expected_size)
        off = sum(1 for a, b in zip(expected, found) if max(abs(x - y) for x, y in zip(a, b)) > 24)
        self.assertLess(off / len(expected), 0.06, f"{off} of {len(expected)} squares of {kept.name} differ")


if __name__ == "__main__":
    sys.argv[1:] = []
    unittest.main()
