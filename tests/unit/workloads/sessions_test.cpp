// Agent sessions: turns wait for answers, sub-agents run beside, ids are local.
#include <gtest/gtest.h>

#include "tests/unit/workloads/trace_helpers.hpp"

namespace oomcast::workloads {
namespace {

std::string turn(int in, int out, const std::string& ids, const std::string& more) {
  return "{\"type\":\"n\",\"in\":" + std::to_string(in) + ",\"out\":" + std::to_string(out) +
         ",\"hash_ids\":[" + ids + "]" + more + "}";
}

std::string session(const std::string& id, const std::string& requests) {
  return "{\"id\":\"" + id + "\",\"block_size\":64,\"hash_id_scope\":\"local\",\"requests\":[" +
         requests + "]}\n";
}

std::unique_ptr<RequestStream> open_text(const std::string& text, std::int64_t sessions) {
  const TempFile file(text);
  TraceOptions options;
  options.concurrent_sessions = sessions;
  return open_trace(file.path(), options);
}

constexpr std::int64_t kMilli = 1'000'000;

SimTime at_ms(std::int64_t millis) { return SimTime{Nanos{millis * kMilli}}; }

TEST(Sessions, ATurnComesItsThinkTimeAfterTheAnswer) {
  const auto stream =
      open_text(session("a", turn(70, 5, "1", ",\"t\":0,\"think_time\":9") + "," +
                                 turn(130, 6, "1,2", ",\"t\":10,\"think_time\":1.5") + "," +
                                 turn(140, 7, "1,2", ",\"t\":14")),
                1);
  TraceRequest request;
  ASSERT_EQ(stream->next_arrival(), SimTime{});
  stream->take(request);
  EXPECT_EQ(request.id, "a/0/0");
  ASSERT_EQ(request.content.size(), 2U);
  EXPECT_EQ(request.content[0].length, Tokens{64});
  EXPECT_EQ(request.content[1].length, Tokens{6});
  const std::uint64_t first_block = request.content[0].id;
  const std::uint64_t rest = request.content[1].id;
  EXPECT_EQ(stream->next_arrival(), std::nullopt);
  EXPECT_FALSE(stream->at_end());

  stream->on_finished(0, at_ms(400));
  ASSERT_EQ(stream->next_arrival(), at_ms(1900));
  stream->take(request);
  EXPECT_EQ(request.parent_id, "a/0/0");
  EXPECT_EQ(request.turn, 2);
  EXPECT_EQ(request.content[0].id, first_block);
  EXPECT_EQ(request.content[0].length, Tokens{128});
  EXPECT_NE(request.content[1].id, rest);

  // Without think_time the gap of the recording stands in: 14 - 10 seconds.
  stream->on_finished(1, at_ms(2000));
  EXPECT_EQ(stream->next_arrival(), at_ms(6000));
  stream->take(request);
  stream->on_finished(2, at_ms(7000));
  EXPECT_TRUE(stream->at_end());
  EXPECT_EQ(stream->summary().read, 3);
}

// What another stream left in the request that is filled again stays out of it.
TEST(Sessions, ARequestTakesNothingFromTheOneBefore) {
  const std::string one = session("a", turn(70, 5, "1", ",\"t\":0"));
  TraceRequest fresh;
  open_text(one, 1)->take(fresh);
  TraceRequest used;
  used.patience = Nanos{5};
  used.priority = 3;
  used.adapter = "x";
  used.output_continues_content = true;
  used.content = {{7, Tokens{8}}};
  open_text(one, 1)->take(used);
  EXPECT_EQ(used, fresh);

  const TempFile sessions(one);
  const TempFile warm_up("arrival_s,input_tokens,output_tokens\n0,1,1\n");
  const auto stream = make_workload({.traces = {sessions.path()}, .warm_up = warm_up.path()});
  ASSERT_TRUE(stream->next_arrival());
  stream->take(used);
  EXPECT_TRUE(used.warm_up);
  stream->on_finished(0, at_ms(1));
  ASSERT_TRUE(stream->next_arrival());
  stream->take(used);
  EXPECT_FALSE(used.warm_up);
}

TEST(Sessions, SoManyAtOnceAndTheNextWhenOneEnds) {
  const std::string one = turn(64, 1, "1", "");
  const auto stream = open_text(session("a", one) + session("b", one) + session("c", one), 2);
  TraceRequest request;
  stream->take(request);
  const std::uint64_t block_of_a = request.content[0].id;
  stream->take(request);
  // Equal ids of two sessions are unrelated.
  EXPECT_NE(request.content[0].id, block_of_a);
  EXPECT_EQ(stream->next_arrival(), std::nullopt);
  stream->on_finished(1, at_ms(30));
  EXPECT_EQ(stream->next_arrival(), at_ms(30));
  stream->take(request);
  EXPECT_EQ(request.id, "c/0/0");
}

TEST(Sessions, SubAgentsRunBesideAndShareNoIds) {
  const std::string agent = "{\"type\":\"subagent\",\"t\":3,\"requests\":[" +
                            turn(64, 1, "1", ",\"t\":0") + "," +
                            turn(64, 2, "1", ",\"t\":2,\"think_time\":1") + "]}";
  const auto stream = open_text(session("a", turn(64, 1, "1", "") + "," + agent + "," +
                                                 turn(64, 3, "1", ",\"think_time\":5")),
                                1);
  TraceRequest request;
  stream->take(request);
  const std::uint64_t parents_block = request.content[0].id;
  stream->on_finished(0, at_ms(0));
  ASSERT_EQ(stream->next_arrival(), at_ms(0));
  stream->take(request);
  EXPECT_EQ(request.id, "a/1/0");
  EXPECT_NE(request.content[0].id, parents_block);
  EXPECT_EQ(stream->next_arrival(), at_ms(5000));
  stream->on_finished(1, at_ms(100));
  EXPECT_EQ(stream->next_arrival(), at_ms(1100));
  stream->take(request);
  EXPECT_EQ(request.output, Tokens{2});
  stream->take(request);
  EXPECT_EQ(request.output, Tokens{3});
  EXPECT_EQ(request.content[0].id, parents_block);
  stream->on_finished(2, at_ms(6000));
  EXPECT_FALSE(stream->at_end());
  stream->on_finished(3, at_ms(6000));
  EXPECT_TRUE(stream->at_end());
}

TEST(Sessions, TurnsWithoutOutputAreDroppedAndTheirThinkTimeIsKept) {
  const auto stream =
      open_text(session("a", turn(64, 1, "1", "") + "," + turn(64, 0, "1", ",\"think_time\":2") +
                                 "," + turn(64, 4, "1", ",\"think_time\":3")),
                1);
  TraceRequest request;
  stream->take(request);
  stream->on_finished(0, at_ms(0));
  EXPECT_EQ(stream->next_arrival(), at_ms(5000));
  EXPECT_EQ(stream->summary().dropped.at("output 0").count, 1);
  EXPECT_EQ(stream->summary().kept, 2);
}

TEST(Sessions, TheSampleFile) {
  const auto stream = open_trace(sample("agentic_head.jsonl"));
  TraceRequest request;
  std::int64_t requests = 0;
  while (!stream->at_end()) {
    ASSERT_TRUE(stream->next_arrival().has_value());
    stream->take(request);
    Tokens sum;
    for (const ContentSegment& segment : request.content) {
      sum += segment.length;
    }
    EXPECT_EQ(sum, request.input);
    stream->on_finished(request.index, request.arrival + kSecond);
    ++requests;
  }
  EXPECT_EQ(requests, 7);
  EXPECT_EQ(stream->summary().read, 7);
}

TEST(Sessions, BadSessionsAreNamed) {
  const auto refused = [](const std::string& requests) {
    return refusal("{\"block_size\":64,\"requests\":[" + requests + "]}\n");
  };
  EXPECT_TRUE(holds(refused(turn(128, 1, "1", "")), "1 ids for 128 tokens"));
  EXPECT_TRUE(holds(refused(turn(-5, 1, "", "")), "in: a whole number"));
  EXPECT_TRUE(holds(refused(turn(64, 1, "1.5", "")), "hash_ids"));
  EXPECT_TRUE(holds(refused(turn(64, 1, "1", ",\"think_time\":-1")), "think_time"));
  EXPECT_TRUE(holds(refusal("{\"block_size\":0,\"requests\":[]}\n"), "block_size"));
  EXPECT_TRUE(holds(refusal("{\"block_size\":1,\"requests\":3}\n"), "requests"));
}

}  // namespace
}  // namespace oomcast::workloads
