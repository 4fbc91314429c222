#include "sim/core/random.hpp"

#include <boost/random/exponential_distribution.hpp>
#include <boost/random/gamma_distribution.hpp>
#include <boost/random/lognormal_distribution.hpp>
#include <boost/random/uniform_int_distribution.hpp>
#include <boost/random/weibull_distribution.hpp>

#include "sim/core/digest.hpp"

namespace oomcast {

RandomStream random_stream(std::uint64_t seed, std::string_view name) {
  Digest digest;
  digest.add(seed);
  digest.add(name);
  return RandomStream(mix64(digest.value()));
}

double uniform01(RandomStream& stream) { return static_cast<double>(stream() >> 11) * 0x1.0p-53; }

double exponential1(RandomStream& stream) {
  return boost::random::exponential_distribution<double>(1.0)(stream);
}

double gamma(RandomStream& stream, double shape, double scale) {
  return boost::random::gamma_distribution<double>(shape, scale)(stream);
}

double weibull(RandomStream& stream, double shape, double scale) {
  return boost::random::weibull_distribution<double>(shape, scale)(stream);
}

double lognormal(RandomStream& stream, double mu, double sigma) {
  return boost::random::lognormal_distribution<double>(mu, sigma)(stream);
}

std::int64_t uniform_int(RandomStream& stream, std::int64_t low, std::int64_t high) {
  return boost::random::uniform_int_distribution<std::int64_t>(low, high)(stream);
}

}  // namespace oomcast
