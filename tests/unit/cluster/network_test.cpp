// Flows on links, by arithmetic on paper.
#include "sim/cluster/network.hpp"

#include <gtest/gtest.h>

#include "sim/cluster/kv_custody.hpp"

namespace oomcast::cluster {
namespace {

constexpr double kGb = 1e9;

FineSpan ms(std::int64_t count) { return FineSpan{Nanos{count * 1'000'000}}; }
std::int64_t nanos(FineSpan span) { return span.floor().count(); }

// Ends every flow in turn; the instants in nanoseconds by flow.
std::map<FlowId, std::int64_t> run_out(Network& network) {
  std::map<FlowId, std::int64_t> ends;
  while (const auto end = network.next_end()) {
    for (const FlowId flow : network.take_ended(*end)) {
      ends[flow] = nanos(*end);
    }
  }
  return ends;
}

TEST(Network, OneFlowTakesBytesByRate) {
  Network network;
  const LinkId link = network.add_link(2 * kGb);
  const FlowId flow = network.start({link}, Bytes{1'000'000'000}, ms(3));
  EXPECT_EQ(run_out(network).at(flow), 503'000'000);
  EXPECT_EQ(network.moved(link), Bytes{1'000'000'000});
  EXPECT_EQ(network.flows(), 0U);
}

// Two share evenly until the small one is through: 100 MB at half a GB/s each takes 200 ms, the
// other has 300 MB left at the whole rate.
TEST(Network, FlowsShareALinkEvenly) {
  Network network;
  const LinkId link = network.add_link(kGb);
  const FlowId small = network.start({link}, Bytes{100'000'000}, ms(0));
  const FlowId large = network.start({link}, Bytes{400'000'000}, ms(0));
  const auto ends = run_out(network);
  EXPECT_EQ(ends.at(small), 200'000'000);
  EXPECT_EQ(ends.at(large), 500'000'000);
  EXPECT_EQ(network.most_flows(link), 2);
}

// Of two senders into one receiver the slow one leaves the rest to the other: 1 of 4 and 3 of 4.
TEST(Network, WhatASlowFlowLeavesGoesToTheOthers) {
  Network network;
  const LinkId slow = network.add_link(kGb);
  const LinkId fast = network.add_link(8 * kGb);
  const LinkId receiver = network.add_link(4 * kGb);
  const FlowId held_back = network.start({slow, receiver}, Bytes{1'000'000'000}, ms(0));
  const FlowId other = network.start({fast, receiver}, Bytes{3'000'000'000}, ms(0));
  const auto ends = run_out(network);
  EXPECT_EQ(ends.at(held_back), 1'000'000'000);
  EXPECT_EQ(ends.at(other), 1'000'000'000);
}

TEST(Network, BytesJoinAFlowUnderWay) {
  Network network;
  const LinkId link = network.add_link(kGb);
  const FlowId flow = network.start({link}, Bytes{10'000'000}, ms(0));
  network.extend(flow, Bytes{5'000'000}, ms(4));
  EXPECT_EQ(run_out(network).at(flow), 15'000'000);
  EXPECT_EQ(network.moved(link), Bytes{15'000'000});
}

// 10 MB at 1 GB/s; after 4 ms a tenth of the rate: 6 MB more take 60 ms.
TEST(Network, ARateThatChangesCountsFromThen) {
  Network network;
  const LinkId link = network.add_link(kGb);
  const FlowId flow = network.start({link}, Bytes{10'000'000}, ms(0));
  network.set_rate(link, 0.1 * kGb, ms(4));
  EXPECT_EQ(run_out(network).at(flow), 64'000'000);
}

TEST(Network, AStoppedLinkEndsNothing) {
  Network network;
  const LinkId link = network.add_link(kGb);
  network.start({link}, Bytes{10'000'000}, ms(0));
  network.set_rate(link, 0, ms(4));
  EXPECT_EQ(network.next_end(), std::nullopt);
}

TEST(Network, ACancelledFlowLeavesItsShare) {
  Network network;
  const LinkId link = network.add_link(kGb);
  const FlowId lost = network.start({link}, Bytes{100'000'000}, ms(0));
  const FlowId kept = network.start({link}, Bytes{100'000'000}, ms(0));
  network.cancel(lost, ms(100));  // 50 MB each so far
  EXPECT_EQ(run_out(network).at(kept), 150'000'000);
  EXPECT_EQ(network.moved(link), Bytes{100'000'000});
}

TEST(KvCustody, EachTokenIsInOneHand) {
  KvCustody custody;
  KvShares one{};
  KvShares other{};
  custody.compute(one, Tokens{100});
  custody.compute(other, Tokens{50});
  custody.pass(one, Hand::kPrefill, Hand::kFlight, Tokens{60});
  custody.pass(one, Hand::kFlight, Hand::kDecode, Tokens{60});
  custody.pass(other, Hand::kPrefill, Hand::kFlight, Tokens{50});
  EXPECT_EQ(custody.at(Hand::kPrefill), Tokens{40});
  EXPECT_EQ(custody.at(Hand::kFlight), Tokens{50});
  EXPECT_EQ(custody.at(Hand::kDecode), Tokens{60});
  custody.audit();
  custody.release(other);  // lost on the way
  custody.release(one);
  EXPECT_EQ(custody.gone(), Tokens{150});
  EXPECT_EQ(custody.computed(), Tokens{150});
  custody.audit();
}

TEST(KvCustodyDeathTest, NobodyPassesOnWhatHeHasNot) {
  KvCustody custody;
  KvShares shares{};
  custody.compute(shares, Tokens{10});
  EXPECT_DEATH(custody.pass(shares, Hand::kFlight, Hand::kDecode, Tokens{1}), "1 tokens pass on");
}

}  // namespace
}  // namespace oomcast::cluster
