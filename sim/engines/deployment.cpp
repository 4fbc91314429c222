#include "sim/engines/deployment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "sim/core/error.hpp"
#include "sim/core/units_text.hpp"

namespace oomcast {
namespace {

struct AssumableBytes {
  const char* name;
  std::optional<Bytes> Assumed::*member;
};

constexpr std::array<AssumableBytes, 8> kQuantities = {{
    {"available_kv_gib", &Assumed::available_kv},
    {"non_torch_gib", &Assumed::non_torch},
    {"activation_peak_gib", &Assumed::activation_peak},
    {"graph_gib", &Assumed::graphs},
    {"avail_after_load_gib", &Assumed::available_after_load},
    {"free_for_kv_gib", &Assumed::free_for_kv},
    {"cache_pool_gib", &Assumed::cache_pool},
    {"host_memory_gib", &Assumed::host_memory},
}};
constexpr const char* kCompileCache = "compile_cache";
constexpr const char* kRouting = "expert_routing";
constexpr const char* kAcceptance = "spec_acceptance";
constexpr const char* kDriver = "driver";

std::vector<std::string> names() {
  std::vector<std::string> out;
  for (const AssumableBytes& quantity : kQuantities) {
    out.emplace_back(quantity.name);
  }
  out.emplace_back(kCompileCache);
  out.emplace_back(kRouting);
  out.emplace_back(kAcceptance);
  out.emplace_back(kDriver);
  return out;
}

}  // namespace

Assumed Assumed::parse(const std::vector<std::string>& texts) {
  Assumed out;
  Problems problems;
  for (const std::string& text : texts) {
    const auto equals = text.find('=');
    const std::string name = text.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : text.substr(equals + 1);
    if (name == kCompileCache) {
      if (value != "warm" && value != "cold") {
        problems.add(
            {"command line", "--assume", text, "compile_cache=warm or compile_cache=cold", ""});
      }
      out.warm_compile_cache = value == "warm";
      continue;
    }
    if (name == kRouting) {
      try {
        out.routing = experts::parse_routing(value);
      } catch (const ConfigError& error) {
        problems.take(error);
      }
      continue;
    }
    if (name == kAcceptance) {
      out.spec_acceptance = parse_number(value);
      if (!out.spec_acceptance || !(*out.spec_acceptance >= 0 && *out.spec_acceptance <= 1)) {
        problems.add({"command line", "--assume", text, "spec_acceptance=0 to 1", ""});
      }
      continue;
    }
    if (name == kDriver) {
      out.driver = parse_version(value.find('.') == std::string::npos ? value + ".0" : value);
      if (!out.driver) {
        problems.add({"command line", "--assume", text, "driver=NVIDIA's version, e.g. 535.247",
                      "nvidia-smi shows it"});
      }
      continue;
    }
    const auto* const known =
        std::find_if(kQuantities.begin(), kQuantities.end(),
                     [&](const AssumableBytes& quantity) { return name == quantity.name; });
    const auto gib = parse_number(value);
    if (known == kQuantities.end()) {
      problems.add({"command line", "--assume", text,
                    "a name of: " + fmt::format("{}", fmt::join(names(), ", ")),
                    did_you_mean(name, names())});
    } else if (!gib || *gib < 0 || *gib > 1e6) {
      problems.add({"command line", "--assume", text, name + "=<GiB, at least 0>", ""});
    } else {
      out.*known->member = Bytes{std::llround(*gib * static_cast<double>(kGiB.count()))};
    }
  }
  problems.raise_if_any();
  return out;
}

Bytes EngineDeployment::used_by_others() const {
  return card.free_at_start ? std::max(Bytes{0}, device_total() - *card.free_at_start)
                            : card.other_use;
}

}  // namespace oomcast
