// What containers, schedulers and terminals put around a line.
#include "sim/logs/log_line.hpp"

#include <gtest/gtest.h>

namespace oomcast::logs {
namespace {

LogLine only(std::string_view raw) {
  LineUnwrapper unwrapper;
  const auto& lines = unwrapper.unwrap(raw);
  EXPECT_EQ(lines.size(), 1U);
  return lines.empty() ? LogLine{} : lines.front();
}

TEST(LogLine, Ranks) {
  EXPECT_EQ(only("(EngineCore_DP0 pid=2) INFO x").rank, "DP0");
  EXPECT_EQ(only("(EngineCore_0 pid=2) INFO x").rank, "");
  EXPECT_EQ(only("(EngineCore pid=2) INFO x").rank, "");
  EXPECT_EQ(only("(Worker_PP1_TP3 pid=2) INFO x").rank, "PP1 TP3");
  EXPECT_EQ(only("(Worker_DP1_TP0_EP2 pid=2) INFO x").rank, "DP1 TP0 EP2");
  EXPECT_EQ(only("(VllmWorker rank=5 pid=12) INFO x").rank, "rank 5");
  EXPECT_EQ(only("(RayWorkerWrapper pid=12, ip=10.0.0.2) INFO x").rank, "");
  EXPECT_EQ(only("[2026-11-29 10:00:00 DP0 TP7 EP7] x").rank, "DP0 TP7 EP7");
  EXPECT_EQ(only("[2026-11-29 10:00:00] x").rank, "");
  EXPECT_EQ(only("[rank2]: torch.OutOfMemoryError: x").rank, "rank 2");
  EXPECT_EQ(only("[TRT-LLM] [RANK 3] [I] x").rank, "rank 3");
  EXPECT_EQ(only("[1,6]<stdout>: x").rank, "rank 6");
}

TEST(LogLine, Streams) {
  EXPECT_EQ(only("prefill-1  | (EngineCore_DP0 pid=2) INFO x").stream, "prefill-1");
  EXPECT_EQ(only("[pod/vllm-0/server] INFO x").stream, "pod/vllm-0/server");
  EXPECT_EQ(only("Nov 29 10:00:00 node7 vllm[4711]: INFO x").stream, "vllm[4711]");
  EXPECT_EQ(only("2026-11-29T10:00:00.123456789Z INFO x").stream, "");
  EXPECT_EQ(only("Available KV cache memory: 1.0 GiB | x").stream, "");
}

TEST(LogLine, JsonRecords) {
  const LogLine docker =
      only(R"({"log":"(Worker_TP1 pid=3) INFO x\n","stream":"stderr","time":"t"})");
  EXPECT_EQ(docker.text, "(Worker_TP1 pid=3) INFO x");
  EXPECT_EQ(docker.rank, "TP1");
  const LogLine journal = only(R"({"MESSAGE":"INFO x","_SYSTEMD_UNIT":"vllm.service"})");
  EXPECT_EQ(journal.text, "INFO x");
  EXPECT_EQ(journal.stream, "vllm.service");
  // Not JSON: a dict of Python, a record cut in the middle.
  EXPECT_EQ(only("{'model': 'x'}").text, "{'model': 'x'}");
  EXPECT_EQ(only(R"({"log":"INFO x)").text, R"({"log":"INFO x)");
  LineUnwrapper unwrapper;
  EXPECT_EQ(unwrapper.unwrap(R"({"message":"one\ntwo\r\nthree"})").size(), 3U);
}

TEST(LogLine, ColoursAndUnreadableBytes) {
  EXPECT_EQ(only("\x1b[1;36m(Worker_TP0 pid=3)\x1b[0;0m INFO x").text, "(Worker_TP0 pid=3) INFO x");
  EXPECT_EQ(only("#033[36m(Worker_TP0 pid=3)#033[0m INFO x").rank, "TP0");
  EXPECT_EQ(only("^[[32mINFO^[[0m x").text, "INFO x");
  LineUnwrapper unwrapper;
  const std::string raw("a\0b\xff\x01 \xe2\x96\x88", 9);
  EXPECT_EQ(unwrapper.unwrap(raw).front().text, "a b   \xe2\x96\x88");
  EXPECT_EQ(unwrapper.unreadable_bytes(), 3);
}

TEST(LogLine, ProgressBarsAreLines) {
  LineUnwrapper unwrapper;
  const auto& lines = unwrapper.unwrap("10%\r20%\r\r100%");
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[2].text, "100%");
}

}  // namespace
}  // namespace oomcast::logs
