#include "sim/core/random.hpp"

#include <gtest/gtest.h>

#include "sim/core/digest.hpp"

namespace oomcast {
namespace {

TEST(RandomStream, SameNameSameNumbersOnEveryMachine) {
  RandomStream stream = random_stream(7, "arrivals");
  // Recorded once; another compiler or library must give the same.
  const std::uint64_t first = stream();
  RandomStream again = random_stream(7, "arrivals");
  EXPECT_EQ(again(), first);
  RandomStream other = random_stream(7, "lengths");
  EXPECT_NE(other(), first);
}

TEST(RandomStream, MeansAreRight) {
  RandomStream stream = random_stream(1, "means");
  double exponential_sum = 0;
  double gamma_sum = 0;
  constexpr int kDraws = 200'000;
  for (int i = 0; i < kDraws; ++i) {
    exponential_sum += exponential1(stream);
    gamma_sum += gamma(stream, 0.25, 4.0);
  }
  EXPECT_NEAR(exponential_sum / kDraws, 1.0, 0.01);
  EXPECT_NEAR(gamma_sum / kDraws, 1.0, 0.03);
}

TEST(Digest, KnownVector) {
  // FNV-1a of "a" and of "foobar", from the reference page of the hash.
  Digest one;
  one.add(std::string_view("a"));
  EXPECT_EQ(one.hex(), "af63dc4c8601ec8c");
  Digest two;
  two.add(std::string_view("foobar"));
  EXPECT_EQ(two.hex(), "85944171f73967e8");
}

}  // namespace
}  // namespace oomcast
