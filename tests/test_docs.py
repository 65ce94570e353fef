"""What the docs say is what the commands print."""

import re
from pathlib import Path

from benchmarks import costs

DOCS = Path(__file__).parent.parent / "docs"


def test_the_cost_tables_are_up_to_date():
    text = (DOCS / "results.md").read_text()
    printed = re.search(r"<!-- benchmarks.costs -->\n(.*?)<!-- end -->", text, flags=re.DOTALL)[1].strip()
    assert printed == costs.tables()


def test_links_lead_somewhere():
    for page in (*DOCS.glob("*.md"), DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
