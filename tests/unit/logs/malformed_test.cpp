// Logs that are cut, huge, binary or hostile: read in bounded memory, or refused with one clear
// error; never a crash.
#include "sim/core/error.hpp"
#include "sim/core/random.hpp"
#include "tests/unit/logs/log_test.hpp"

namespace oomcast::logs {
namespace {

std::string whole_log() {
  return "vLLM API server version 0.19.0\n"
         "(Worker_TP0 pid=3) Model loading took 14.99 GiB memory and 3 seconds\n"
         "(Worker_TP0 pid=3) Available KV cache memory: 54.14 GiB\n"
         "(EngineCore_DP0 pid=3) GPU KV cache size: 443,520 tokens\n";
}

TEST(Malformed, CutAnywhere) {
  for (std::size_t cut = 0; cut < whole_log().size(); ++cut) {
    try {
      const EngineLog log = read(whole_log().substr(0, cut));
      ASSERT_EQ(log.runs.size(), 1U);
    } catch (const ConfigError& error) {
      EXPECT_LT(cut, 32U) << error.what();  // not even the first line
    }
  }
}

TEST(Malformed, RefusedWithTheFileNamed) {
  for (const std::string& text :
       {std::string(), std::string("hello\nworld\n"), std::string(100'000, '\0'),
        std::string("\x7f"
                    "ELF\x02\x01\x01",
                    7)}) {
    try {
      read(text);
      ADD_FAILURE() << "accepted " << text.size() << " bytes";
    } catch (const ConfigError& error) {
      ASSERT_EQ(error.problems().size(), 1U);
      EXPECT_EQ(error.problems()[0].source, "test.log");
    }
  }
}

TEST(Malformed, BinaryAroundALineIsCounted) {
  const EngineLog log =
      read(std::string(1000, '\x01') + "\n" + whole_log() + std::string(24, '\xff'));
  ASSERT_EQ(log.runs.size(), 1U);
  EXPECT_EQ(log.unreadable_bytes, 1024);
}

TEST(Malformed, LongLinesAreCut) {
  const std::string filler(kMostLineBytes, 'x');
  const EngineLog log = read(whole_log() + filler + "Available KV cache memory: 1.00 GiB\n");
  EXPECT_EQ(log.cut_lines, 1);
  EXPECT_DOUBLE_EQ(value(log.runs.at(0), Figure::kAvailableKv, "TP0"), 54.14);
}

TEST(Malformed, ImpossibleNumbersAreCountedNotTaken) {
  const EngineLog log = read(whole_log() + "Available KV cache memory: " + std::string(400, '9') +
                             ".0 GiB\nAvailable KV cache memory: 99999999999999 GiB\n");
  EXPECT_EQ(log.odd_numbers, 2);
  EXPECT_DOUBLE_EQ(value(log.runs.at(0), Figure::kAvailableKv, "TP0"), 54.14);
}

TEST(Malformed, ManyStartsRanksAndErrorsAreBounded) {
  std::string log;
  for (int i = 0; i < 300; ++i) {
    log += whole_log();
    log += "(Worker_TP" + std::to_string(i) +
           " pid=3) torch.OutOfMemoryError: CUDA out of memory. "
           "Tried to allocate " +
           std::to_string(i + 1) + ".00 MiB.\n";
  }
  const EngineLog read_log = read(log);
  EXPECT_EQ(read_log.runs.size(), kMostRuns);
  EXPECT_EQ(read_log.further_runs, 300 - static_cast<std::int64_t>(kMostRuns));
  std::string ranks = whole_log();
  for (int i = 0; i < 1000; ++i) {
    ranks += "(Worker_TP" + std::to_string(i) + " pid=3) Model loading took 1.00 GiB memory and\n";
  }
  EXPECT_LE(read(ranks).runs.at(0).ranks.size(), kMostRanks);
}

TEST(Malformed, NotesOfOtherRanksJoinTheRun) {
  const EngineLog log =
      read("vLLM API server version 0.19.0\n(Worker_TP7 pid=3) weights 7.51, activation 1.89\n");
  const EngineRun& run = log.runs.at(0);
  for (const Reading& reading : run.readings) {
    EXPECT_LT(reading.rank, run.ranks.size());
  }
  EXPECT_LT(run.deciding_rank(), run.ranks.size());
}

TEST(Malformed, HostileLinesTakeLinearTime) {
  // Each would take a backtracking matcher far longer than this test may run.
  std::string log = whole_log();
  log += std::string(200'000, 'a') + "\n";
  for (int i = 0; i < 50; ++i) {
    log += "max_total_num_tokens=" + std::string(200'000, '=') + "\n";
    log += "Load weight end." + std::string(200'000, '.') + "mem usage\n";
  }
  EXPECT_EQ(read(log).runs.size(), 1U);
}

TEST(Malformed, RandomBytes) {
  RandomStream random = random_stream(7, "log bytes");
  for (int round = 0; round < 200; ++round) {
    std::string text = whole_log();
    for (int i = 0; i < 40; ++i) {
      text[random() % text.size()] = static_cast<char>(random() % 256);
    }
    try {
      read(text);
    } catch (const ConfigError& error) {
      EXPECT_FALSE(error.problems().empty());
    }
  }
}

}  // namespace
}  // namespace oomcast::logs
