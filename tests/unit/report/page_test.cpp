// The page is one file that asks for nothing, and text stays text whatever it says.
#include "sim/report/report_page.hpp"

#include <gtest/gtest.h>

#include "sim/core/json.hpp"
#include "sim/report/html.hpp"
#include "tests/unit/report/small_run.hpp"

namespace oomcast::report {
namespace {

std::size_t count_of(const std::string& text, const std::string& word) {
  std::size_t count = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    ++count;
  }
  return count;
}

// The JSON between the tags that hold it.
OrderedJson data_of(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const std::size_t begin = page.find(open) + open.size();
  return OrderedJson::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

TEST(Page, HostileTextCannotLeaveItsPlace) {
  const std::string hostile = "</script><img src=x onerror=alert(1)>\"'&\xE2\x80\xA8";
  const std::string plain_page = report_page(read_run(texts_of(small_run())));
  const std::string page = report_page(read_run(texts_of(small_run(hostile))));
  EXPECT_EQ(page.find(hostile), std::string::npos);
  EXPECT_EQ(page.find("<img"), std::string::npos);
  EXPECT_EQ(count_of(page, "</script>"), count_of(plain_page, "</script>"));
  EXPECT_EQ(count_of(page, "<title>"), 1U);
  // And yet it arrives as it was.
  EXPECT_EQ(data_of(page)["runs"][0]["model"], hostile);
}

TEST(Page, AsksForNothing) {
  const std::string page = report_page(read_run(texts_of(small_run())));
  for (const char* reference :
       {" src=\"", "@import", "url(", "sourceMappingURL", "<link rel=\"stylesheet\""}) {
    EXPECT_EQ(page.find(reference), std::string::npos) << reference;
  }
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  // dygraphs' licence note.
  EXPECT_NE(page.find("@license"), std::string::npos);
}

TEST(Page, ColumnsAreFirstValuesAndDifferences) {
  const OrderedJson rank =
      data_of(report_page(read_run(texts_of(small_run()))))["runs"][0]["ranks"][0];
  const OrderedJson& series = rank["series"];
  EXPECT_EQ(series["time_ns"], OrderedJson({0, 1'500'000'001, 499'999'999}));
  EXPECT_EQ(series["kv_used"], OrderedJson({16, 32, -16}));
  EXPECT_EQ(series["leaves"][0], 400);  // weights never change
  EXPECT_EQ(series["preemptions"], OrderedJson({0, 0, 1}));
  EXPECT_EQ(rank["rows"], 3);
}

TEST(Page, IsTheSameEachTime) {
  const RunTexts texts = texts_of(small_run());
  EXPECT_EQ(report_page(read_run(texts)), report_page(read_run(texts)));
}

TEST(Page, ComparisonHoldsBothRuns) {
  const FinishedRun before = read_run(texts_of(small_run("before")));
  const FinishedRun after = read_run(texts_of(small_run("after")));
  const OrderedJson runs = data_of(comparison_page(before, after))["runs"];
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0]["model"], "before");
  EXPECT_EQ(runs[1]["model"], "after");
}

// A thousand ranks of long timelines: still a file to send to somebody.
TEST(Page, StaysSmallWhateverTheRun) {
  FinishedRun run = read_run(texts_of(small_run()));
  std::vector<TimelineRow> rows;
  for (std::int64_t i = 0; i < 2'000; ++i) {
    TimelineRow row;
    row.at = SimTime{Nanos{i * 1'234'567'891}};
    for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
      row.device[leaf] = Bytes{(i * 7'919 + static_cast<std::int64_t>(leaf)) % 9'973 * 1'000'003};
      row.views.device_used += row.device[leaf];
    }
    rows.push_back(row);
  }
  const FinishedRank pattern = run.ranks.front();
  run.ranks.clear();
  for (int i = 0; i < 1'000; ++i) {
    run.ranks.push_back(pattern);
    run.ranks.back().rank = i;
    run.ranks.back().timeline = i < 200 ? rows : std::vector<TimelineRow>{};
  }
  const std::string page = report_page(run);
  EXPECT_LT(page.size(), 12'000'000U);
  const OrderedJson data = data_of(page);
  EXPECT_EQ(data["runs"][0]["all_ranks"], 1'000);
  EXPECT_LT(data["runs"][0]["ranks"].size(), 100U);
}

TEST(EscapeHtml, MarkupBecomesText) {
  EXPECT_EQ(escape_html("<a href=\"x\">'&'</a>"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
}

}  // namespace
}  // namespace oomcast::report
