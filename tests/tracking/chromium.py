# SPDX-License-Identifier: Apache-2.0
"""chromium.py <chromium> <tracked_run> <accelerate_report>: checks the page in a real browser, wide and
narrow. A measuring script is inserted into a copy; the page itself has no script."""
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

MEASURE = """<script>
const box = (element) => element.getBoundingClientRect();
const outside = (text) => { const own = box(text), whole = box(text.closest("svg"));
  return own.left < whole.left - 1 || own.right > whole.right + 1 || own.top < whole.top - 1 || own.bottom > whole.bottom + 1; };
const measured = {
  title: document.title,
  headings: [...document.querySelectorAll("h2, h3")].map((one) => one.textContent),
  charts: [...document.querySelectorAll("svg")].map((one) => [box(one).width, box(one).height]),
  outside: [...document.querySelectorAll("svg text")].filter(outside).map((one) => one.textContent),
  overflow: document.documentElement.scrollWidth - window.innerWidth,
  bars: [...document.querySelectorAll(".bar .data")].map((one) => box(one).width / box(one.parentElement).width),
};
document.body.insertAdjacentHTML("beforeend", `<pre id="measured">${JSON.stringify(measured)}</pre>`);
</script></body>"""


def rank(number, wait):
    operators = [{"name": name, "calls": 9, "self_ms": ms, "total_ms": ms, "device_ms": ms / 2, "gflop": 0.5}
                 for name, ms in (("aten::addmm", 40.0), ("aten::convolution_backward", 90.0), ("c10d::allreduce_", 3.0))]
    return {"rank": number, "host": "gpu-a", "step_ms": [50.0 + number, 60.0, 55.0 - 3 * number], "data_wait_ms": wait,
            "communication_ms": 20.0, "overlapped_ms": 15.0, "device_busy_ms": 99.0, "gflop": 9.0, "peak_gflop_per_s": 1000.0,
            "peak_resident_bytes": 3 << 30, "peak_allocated_bytes": 70 << 30,
            "operators": operators}


def expect(what, holds):
    if not holds:
        sys.exit(f"chromium.py: {what}")


def browse(chromium, folder, page, *arguments):
    command = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb",
               "--virtual-time-budget=2000", f"--user-data-dir={folder}/profile", *arguments, page.as_uri()]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def check_layout(chromium, folder, page, width):
    copy = folder / "measured.html"
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", MEASURE), encoding="utf-8")
    dom = browse(chromium, folder, copy, f"--window-size={width},2000", "--dump-dom")
    found = json.loads(re.findall(r'<pre id="measured">(.*?)</pre>', dom)[-1].replace("&amp;", "&").replace("&lt;", "<"))
    expect(found["title"], found["title"] == "Training report")
    for heading in ("loss", "steps per second", "Profile in traces", "ms per step, by rank"):
        expect(f"{heading} in {found['headings']}", heading in found["headings"])
    expect(f"charts {found['charts']}", len(found["charts"]) >= 5 and all(w > 250 and h > 100 for w, h in found["charts"]))
    expect(f"texts outside of their charts: {found['outside']}", not found["outside"])
    expect(f"{found['overflow']} pixels wider than a window of {width}", found["overflow"] <= 0)
    expect(f"bars {found['bars']}", [round(share, 2) for share in found["bars"]] == [0.01, 0.12])


def check_colours(chromium, folder, page):
    picture = folder / "page.png"
    browse(chromium, folder, page, "--window-size=1200,2400", f"--screenshot={picture}")
    with Image.open(picture) as image:
        expect(image.size, image.size == (1200, 2400))
        counts = {colour: count for count, colour in image.convert("RGB").getcolors(1 << 24)}
    expect("the paper is white", counts.get((255, 255, 255), 0) > 1200 * 2400 // 2)
    for name, colour in (("first curve", (0x1f, 0x6f, 0xeb)), ("second rank's, and waiting", (0xd9, 0x73, 0x0d))):
        expect(f"{name}: {counts.get(colour, 0)} pixels", counts.get(colour, 0) > 100)


def main():
    chromium, tracked_run, report = sys.argv[1:4]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        subprocess.run([tracked_run, name], check=True)
        (folder / "traces").mkdir()
        (folder / "traces/profile_summary.json").write_text(json.dumps({"ranks": [rank(0, 1.65), rank(1, 19.6)]}))
        output = subprocess.run([report, name], check=True, capture_output=True, text=True).stdout
        expect(output, output == f"{name}/report.html: 1 run, 1 profile\n")
        page = folder / "report.html"
        for width in (1200, 600):
            check_layout(chromium, folder, page, width)
        check_colours(chromium, folder, page)
    print("a browser draws the report")


main()
