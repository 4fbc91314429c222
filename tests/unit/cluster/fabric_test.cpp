#include "sim/cluster/fabric.hpp"

#include <gtest/gtest.h>

namespace oomcast::cluster {
namespace {

models::LinkSpec nic(double gb, double efficiency) {
  models::LinkSpec link;
  link.bytes_per_second = gb * 1e9;
  link.efficiency = efficiency;
  return link;
}

std::int64_t nanos_of(const Fabric& fabric, Network& network, std::size_t from, std::size_t to) {
  network.start(fabric.path(from, to), Bytes{1'000'000'000}, {});
  const std::int64_t end = network.next_end()->floor().count();
  network.take_ended(*network.next_end());
  return end;
}

// Eight cards with a NIC of 50 GB/s each, of which 80 % are reached: 320 GB/s.
TEST(Fabric, CardsOfAServerSendTogether) {
  Network network;
  const Fabric fabric({nic(50, 0.8), 8, 8}, {{8, 0, 0}, {8, 1, 0}}, network);
  EXPECT_EQ(fabric.nodes(), 2);
  EXPECT_EQ(nanos_of(fabric, network, 0, 1), 3'125'000);
}

// A larger server on one side: the smaller one's ports are what counts.
TEST(Fabric, TheSmallerSideBounds) {
  Network network;
  const Fabric fabric({nic(50, 1), 8, 8}, {{2, 0, 0}, {8, 1, 0}}, network);
  EXPECT_EQ(nanos_of(fabric, network, 0, 1), 10'000'000);
}

// Two servers of four cards stand in one node of two NICs; together they get what one has alone.
TEST(Fabric, ServersOfANodeShareItsNics) {
  Network network;
  const Fabric fabric({nic(50, 1), 8, 2}, {{4, 0, 0}, {4, 0, 0}, {4, 1, 0}, {4, 1, 0}}, network);
  EXPECT_EQ(fabric.nodes(), 2);
  EXPECT_EQ(nanos_of(fabric, network, 0, 2), 10'000'000);
  network.start(fabric.path(0, 2), Bytes{1'000'000'000}, {});
  network.start(fabric.path(1, 3), Bytes{1'000'000'000}, {});
  EXPECT_EQ(network.next_end()->floor().count(), 20'000'000);
}

// Sixteen cards are two nodes, and have the NICs of both.
TEST(Fabric, ALargeServerTakesWholeNodes) {
  Network network;
  const Fabric fabric({nic(50, 1), 8, 4}, {{16, 0, 0}, {16, 1, 0}}, network);
  EXPECT_EQ(fabric.nodes(), 4);
  EXPECT_EQ(nanos_of(fabric, network, 0, 1), 2'500'000);  // 8 NICs
}

// NVLink has the card's rate, and nobody shares it.
TEST(Fabric, NvlinkIsTheCards) {
  Network network;
  models::LinkSpec link = models::find_link("nvlink");
  link.efficiency = 1;
  const Fabric fabric({link, 8, 8}, {{4, 0, 450e9}, {4, 1, 450e9}}, network);
  EXPECT_EQ(fabric.path(0, 1).size(), 2U);
  EXPECT_EQ(nanos_of(fabric, network, 0, 1), 555'555);
}

TEST(Fabric, ASlowServerSlowsItsOwnPorts) {
  Network network;
  Fabric fabric({nic(50, 1), 8, 8}, {{8, 0, 0}, {8, 0, 0}, {8, 1, 0}}, network);
  fabric.slow(0, 0.1, {});
  EXPECT_EQ(nanos_of(fabric, network, 0, 2), 25'000'000);
  EXPECT_EQ(nanos_of(fabric, network, 1, 2), 2'500'000);
  fabric.slow(0, 1, {});
  EXPECT_EQ(nanos_of(fabric, network, 0, 2), 2'500'000);
}

TEST(Links, Catalog) {
  EXPECT_EQ(models::find_link("NDR").name, "ib-ndr");
  EXPECT_EQ(models::find_link("ib-ndr").bytes_per_second, 50e9);
  EXPECT_FALSE(models::find_link("tcp").rdma);
  try {
    models::find_link("roce-40");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("roce-400"), std::string::npos);
  }
}

}  // namespace
}  // namespace oomcast::cluster
