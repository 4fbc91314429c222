// Named random streams: each use of chance draws from its own stream, so adding one leaves the
// others as they were. Engine and distributions are Boost's, whose results do not depend on the
// standard library.
#pragma once

#include <boost/random/mersenne_twister.hpp>
#include <cstdint>
#include <string_view>

namespace oomcast {

using RandomStream = boost::random::mt19937_64;

// The same (seed, name) gives the same stream on every machine.
RandomStream random_stream(std::uint64_t seed, std::string_view name);

// [0, 1) with 53 random bits, the same on every machine.
double uniform01(RandomStream& stream);
// Exponential with mean 1.
double exponential1(RandomStream& stream);
// Gamma with the given shape and scale; both > 0.
double gamma(RandomStream& stream, double shape, double scale);
// Weibull with the given shape and scale; both > 0.
double weibull(RandomStream& stream, double shape, double scale);
// Log-normal: exp(N(mu, sigma)).
double lognormal(RandomStream& stream, double mu, double sigma);
// Integer uniform in [low, high], low <= high.
std::int64_t uniform_int(RandomStream& stream, std::int64_t low, std::int64_t high);

}  // namespace oomcast
