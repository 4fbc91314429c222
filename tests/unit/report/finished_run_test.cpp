// What the writers wrote comes back; what is not theirs, or not whole, is refused by name and
// place.
#include "sim/report/finished_run.hpp"

#include <gtest/gtest.h>

#include "sim/core/error.hpp"
#include "sim/core/json.hpp"
#include "sim/report/tables.hpp"
#include "sim/report/timeline_reader.hpp"
#include "tests/unit/report/small_run.hpp"

namespace oomcast::report {
namespace {

void expect_same_row(const TimelineRow& read, const TimelineRow& written) {
  EXPECT_EQ(read.at, written.at);
  EXPECT_EQ(read.device, written.device);
  EXPECT_EQ(read.views.torch_allocated, written.views.torch_allocated);
  EXPECT_EQ(read.views.torch_reserved, written.views.torch_reserved);
  EXPECT_EQ(read.views.device_used, written.views.device_used);
  EXPECT_EQ(read.views.pinned_host, written.views.pinned_host);
  EXPECT_EQ(read.kv_used, written.kv_used);
  EXPECT_EQ(read.kv_cached, written.kv_cached);
  EXPECT_EQ(read.kv_free, written.kv_free);
  EXPECT_EQ(read.running, written.running);
  EXPECT_EQ(read.waiting, written.waiting);
  EXPECT_EQ(read.step_tokens, written.step_tokens);
  EXPECT_EQ(read.preemptions, written.preemptions);
}

// The one problem that reading these texts meets.
std::string refusal(const RunTexts& texts) {
  try {
    read_run(texts);
  } catch (const ConfigError& error) {
    return to_string(error.problems().front());
  }
  return "";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(FinishedRun, RanksComeBackRowForRow) {
  const SmallRun written = small_run();
  const FinishedRun run = read_run(texts_of(written));
  ASSERT_EQ(run.ranks.size(), 2U);
  for (std::size_t i = 0; i < run.ranks.size(); ++i) {
    const FinishedRank& rank = run.ranks[i];
    const RankRecord& from = written.record.ranks[i];
    EXPECT_EQ(rank.rank, from.rank);
    EXPECT_EQ(rank.alike, from.alike);
    EXPECT_EQ(rank.device_total, Bytes{1000});
    ASSERT_EQ(rank.timeline.size(), from.timeline.size());
    for (std::size_t row = 0; row < rank.timeline.size(); ++row) {
      expect_same_row(rank.timeline[row], from.timeline[row]);
    }
    ASSERT_EQ(rank.startup.size(), 2U);
    EXPECT_EQ(rank.startup[0].name, "load");
    EXPECT_EQ(rank.startup[0].device_peak, Bytes{450});
    EXPECT_EQ(rank.startup[1].at_end.device, from.startup[1].device);
    EXPECT_EQ(rank.device_peak.bytes, Bytes{800});
    EXPECT_EQ(rank.device_peak.live, from.device_peak.live);
    ASSERT_EQ(rank.leaf_peaks.size(), 1U);
    EXPECT_EQ(rank.leaf_peaks[0].first, Leaf::kRuntimeLogits);
    EXPECT_EQ(rank.leaf_peaks[0].second.at, SimTime{Nanos{1'500'000'000}});
    ASSERT_EQ(rank.profile_peak.size(), 1U);
    EXPECT_EQ(rank.profile_peak[0].formula, "R x V");
  }
  EXPECT_EQ(run.ranks[0].role, "prefill");
  EXPECT_EQ(run.ranks[1].role, "decode");
}

TEST(FinishedRun, RowsAreTheSameFromTheRunAndFromItsFile) {
  const SmallRun written = small_run();
  const std::vector<FinishedRank> read = read_run(texts_of(written)).ranks;
  std::vector<FinishedRank> taken = read;
  for (FinishedRank& rank : taken) {
    rank.timeline.clear();
    for (StartupPhase& phase : rank.startup) {
      phase.at_end = {};
    }
  }
  take_timeline(written.record.ranks, taken);
  for (std::size_t i = 0; i < read.size(); ++i) {
    ASSERT_EQ(taken[i].timeline.size(), read[i].timeline.size());
    for (std::size_t row = 0; row < read[i].timeline.size(); ++row) {
      expect_same_row(taken[i].timeline[row], read[i].timeline[row]);
    }
    for (std::size_t phase = 0; phase < read[i].startup.size(); ++phase) {
      expect_same_row(taken[i].startup[phase].at_end, read[i].startup[phase].at_end);
    }
  }
}

TEST(FinishedRun, TheRestOfTheRecordComesBack) {
  const FinishedRun run = read_run(texts_of(small_run()));
  EXPECT_EQ(run.model, "tiny");
  EXPECT_EQ(run.tp, 3);
  EXPECT_EQ(run.given, (Settings{{"max-num-seqs", "4"}, {"VLLM_USE_V1", "1"}}));
  EXPECT_EQ(run.resolved, (Settings{{"max_num_seqs", "4"}, {"sizes", "[1,2]"}}));
  EXPECT_EQ(run.engine_report, (Settings{{"kv_tokens", "300"}, {"weights_gib", "0.5"}}));
  EXPECT_EQ(run.workload, std::vector<std::string>{"a.csv (azure): 3 of 4 requests"});
  EXPECT_FALSE(run.outcome.fits);
  EXPECT_EQ(run.outcome.rank, 1);
  EXPECT_EQ(run.outcome.short_by, Bytes{7});
  ASSERT_EQ(run.outcome.fixes.size(), 1U);
  EXPECT_EQ(run.outcome.fixes[0].frees, Bytes{40});
  EXPECT_EQ(run.totals.kv_peak, Bytes{48});
  EXPECT_DOUBLE_EQ(run.totals.kv_peak_s, 1.5);
  EXPECT_EQ(run.digest, "abc");
  EXPECT_EQ(run.program_version, "0.1.0");
}

TEST(FinishedRun, RequestsComeBackWithTheirSpans) {
  const FinishedRequests requests = read_run(texts_of(small_run())).requests;
  ASSERT_EQ(requests.total, 3);
  ASSERT_EQ(requests.kept.size(), 3U);
  EXPECT_EQ(requests.kept[0].id, "0");
  EXPECT_EQ(requests.kept[0].ttft_ns(), 200);
  EXPECT_EQ(requests.kept[0].tpot_ns(), 100);  // (1200 - 200) / 10
  EXPECT_EQ(requests.kept[0].latency_ns(), 1200);
  EXPECT_EQ(requests.kept[1].id, "odd, \"id\"");
  EXPECT_EQ(requests.kept[1].tpot_ns(), 300);
  EXPECT_EQ(requests.kept[2].ttft_ns(), std::nullopt);
  EXPECT_EQ(requests.kept[2].outcome, "rejected_too_long");
  ASSERT_EQ(requests.ttft.size(), 101U);
  EXPECT_EQ(requests.ttft.back(), 300);
}

TEST(FinishedRun, TablesHoldEveryPhaseAndPeak) {
  const FinishedRun run = read_run(texts_of(small_run()));
  const std::string startup = startup_csv(run);
  EXPECT_EQ(std::count(startup.begin(), startup.end(), '\n'), 1 + 2 * 2);
  EXPECT_NE(startup.find("\n1,ready,800,700,0,0,400,0,0,300,"), std::string::npos) << startup;
  const std::string peaks = peaks_csv(run);
  EXPECT_EQ(std::count(peaks.begin(), peaks.end(), '\n'), 1 + 2 * 2);
  EXPECT_NE(peaks.find("\n0,runtime.logits,90,1.500000000,serving,400,"), std::string::npos)
      << peaks;
}

TEST(FinishedRun, DamagedTimelinesAreRefusedWithLineAndColumn) {
  const RunTexts good = texts_of(small_run());
  const auto refused = [&good](const std::string& from, const std::string& to) {
    RunTexts texts = good;
    texts.timeline = replaced(good.timeline, from, to);
    return refusal(texts);
  };
  EXPECT_EQ(refused("kv.pool,", "kv.pol,"),
            "timeline.csv: line 1: expected a column kv.pool (did you mean `kv.pol`?)");
  // Row 5 is the rank's second of serving: 400 + 300 + 90.
  EXPECT_NE(refused(",790,720,790,", ",790,720,791,").find("line 5 device_used_bytes"),
            std::string::npos);
  EXPECT_NE(refused("1.500000001,0", "1.5x,0").find("line 5 time_s: found `1.5x`"),
            std::string::npos);
  EXPECT_NE(refused("1.500000001,0", "2.5,0").find("line 6 time_s"), std::string::npos);
  EXPECT_NE(refused("1.500000001,0", "1.500000001,7").find("a rank of record.json"),
            std::string::npos);
  EXPECT_NE(refused("1.500000001,0,400", "1.500000001,0,-400").find("line 5 model.weights"),
            std::string::npos);
  EXPECT_NE(refused("1.500000001,0,400", "1.500000001,0,99999999999999999999").find("2^52"),
            std::string::npos);
}

TEST(FinishedRun, CutFilesAreRefused) {
  const RunTexts good = texts_of(small_run());
  RunTexts texts = good;
  texts.requests = good.requests.substr(0, good.requests.rfind("r,0.0"));
  EXPECT_NE(refusal(texts).find("requests.csv: found `2 rows`, expected 3"), std::string::npos);
  texts = good;
  texts.timeline = good.timeline.substr(0, good.timeline.find('\n', 700));
  EXPECT_NE(refusal(texts), "");
  // Every way to cut the record short is refused, never a crash.
  for (std::size_t size = 0; size < good.record.size(); size += 7) {
    texts = good;
    texts.record = good.record.substr(0, size);
    EXPECT_NE(refusal(texts), "") << size;
  }
}

TEST(FinishedRun, ForeignRecordsAreRefusedByKey) {
  const RunTexts good = texts_of(small_run());
  const auto refused = [&good](const std::string& from, const std::string& to) {
    RunTexts texts = good;
    texts.record = replaced(good.record, from, to);
    return refusal(texts);
  };
  EXPECT_NE(refused("oomcast.record/1", "oomcast.plan/1").find("record.json: schema"),
            std::string::npos);
  EXPECT_NE(refused("\"steps\":12", "\"steps\":-1").find("totals.steps"), std::string::npos);
  EXPECT_NE(refused("\"device_total_bytes\":1000", "\"device_total_bytes\":[]")
                .find("ranks[0].device_total_bytes"),
            std::string::npos);
  EXPECT_NE(refused("\"runtime.logits\":90", "\"runtime.logit\":90").find("did you mean"),
            std::string::npos);
  EXPECT_NE(refused("\"fits\":false", "\"fits\":0").find("outcome.fits"), std::string::npos);
  EXPECT_NE(refused("\"time_s\":1.5", "\"time_s\":1e300").find("time_s"), std::string::npos);
}

TEST(FinishedRun, ADamagedRecordNamesManyProblemsButNotMillions) {
  RunTexts texts = texts_of(small_run());
  OrderedJson record = OrderedJson::parse(texts.record);
  record["ranks"] = OrderedJson::array();
  for (int i = 0; i < 1000; ++i) {
    record["ranks"].push_back(OrderedJson::object());
  }
  texts.record = record.dump();
  try {
    read_run(texts);
    FAIL() << "read";
  } catch (const ConfigError& error) {
    EXPECT_GT(error.problems().size(), 3U);
    EXPECT_LT(error.problems().size(), 100U);
  }
}

TEST(FinishedRun, AMissingFolderIsNamed) {
  try {
    read_run(std::string("no/such/run"));
    FAIL() << "read";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.problems().front().source, "no/such/run");
  }
}

}  // namespace
}  // namespace oomcast::report
