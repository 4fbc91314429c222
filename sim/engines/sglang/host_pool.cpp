#include "sim/engines/sglang/host_pool.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/attention_kinds.hpp"

namespace oomcast::sglang {
namespace {

constexpr double kGigabyte = 1e9;
constexpr Bytes kHostReserve = kGiB * 10;  // HICACHE_HOST_MEMORY_RESERVE_BYTES

// Whole pages, and one for writes of padding.
Tokens paged(double slots, Tokens page) {
  return page * (static_cast<std::int64_t>(std::floor(slots)) / page.count() + 1);
}

std::string layout(const Deployment& deployment) {
  const std::string given =
      deployment.launch.text("hicache-mem-layout")
          .value_or(deployment.rules.host_write_staging ? "page_first" : "layer_first");
  const bool direct = deployment.launch.text("hicache-io-backend").value_or("kernel") == "direct";
  return given == "page_first" && direct ? "page_first_direct" : given;
}

// What a rank may pin; nullopt: nothing is known of the host.
std::optional<Bytes> allowance(const Deployment& deployment) {
  if (!deployment.assumed.host_memory) {
    return std::nullopt;
  }
  const Bytes free = *deployment.assumed.host_memory - kHostReserve;
  const std::int64_t nodes = deployment.launch.integer("nnodes").value_or(1);
  const std::int64_t ranks =
      deployment.rules.host_pool_auto_size ? deployment.tp * deployment.pp / nodes : 1;
  return Bytes{free.count() / std::max<std::int64_t>(ranks, 1)};
}

bool sized_by_default(const Deployment& deployment) {
  return !deployment.launch.given("hicache-ratio") &&
         deployment.launch.integer("hicache-size").value_or(0) <= 0;
}

// Host slots per slot of the card. The default is lowered until the pool fits, with 5 % for what is
// rounded up.
double ratio(const Deployment& deployment, const CachePlan& plan, int stage) {
  constexpr double kSlack = 0.05;
  constexpr double kBufferOnly = 1.2;
  if (!sized_by_default(deployment)) {
    return deployment.launch.number("hicache-ratio").value_or(2);
  }
  const bool buffer =
      deployment.launch.text("hicache-host-memory-mode").value_or("cache") == "buffer_only";
  const double usual = buffer ? kBufferOnly : 2;
  const auto host = allowance(deployment);
  if (!host || !deployment.rules.host_pool_auto_size) {
    return usual;
  }
  const double share = deployment.launch.number("hicache-host-memory-fraction").value_or(0.8);
  const double budget = std::floor(static_cast<double>(host->count()) * share);
  const Bytes device = kv_pool_bytes(deployment, plan, stage);
  return std::min(usual, budget * (1 - kSlack) / static_cast<double>(device.count()));
}

struct Slots {
  double full = 0;
  double window = 0;
};

Slots wanted(const Deployment& deployment, const CachePlan& plan) {
  const std::int64_t gigabytes = deployment.launch.integer("hicache-size").value_or(0);
  Slots out;
  for (int stage = 0; stage < deployment.pp; ++stage) {
    Slots own;
    if (gigabytes > 0) {
      const CacheSizes sizes = cache_sizes(deployment, stage);
      const auto page = static_cast<double>(deployment.page_size.count());
      const double full = sizes.full_token * (static_cast<double>(plan.tokens.count()) + page);
      const double window =
          plan.window_tokens > Tokens{0}
              ? sizes.window_token * (static_cast<double>(plan.window_tokens.count()) + page)
              : 0;
      const double bytes = static_cast<double>(gigabytes) * kGigabyte;
      const double share = window > 0 ? full / (full + window) : 1;
      own.full = full > 0 ? std::floor(bytes * share / sizes.full_token) : 0;
      own.window = window > 0 ? std::floor(bytes * (1 - share) / sizes.window_token) : 0;
    } else {
      const double each = ratio(deployment, plan, stage);
      own = {static_cast<double>(plan.tokens.count()) * each,
             static_cast<double>(plan.window_tokens.count()) * each};
    }
    out = stage == 0 ? own : Slots{std::min(out.full, own.full), std::min(out.window, own.window)};
  }
  return out;
}

// K and V of the buffer's pages, one tensor each, or latents; rows that are no multiple of 16 bytes
// are copied without it.
void add_staging(const Deployment& deployment, Tokens slots, bool window, int stage,
                 Tensors& tensors) {
  constexpr std::int64_t kPages = 64;
  constexpr std::int64_t kCopied = 16;
  const std::int64_t pages = std::min(slots.count() / deployment.page_size.count(), kPages);
  const bool latent = has_mla(*deployment.model);
  double token = 0;
  for (const models::KvLayerSpec& layer : deployment.kv_layers(stage)) {
    if (in_window_pool(deployment, layer) != window || models::has_state(layer.kind)) {
      continue;
    }
    const double row = token_bytes(deployment, layer) / (latent ? 1 : 2);
    if (std::llround(row) % kCopied != 0) {
      return;
    }
    token += token_bytes(deployment, layer);
  }
  const Bytes bytes{
      std::llround(token * static_cast<double>(deployment.page_size.count() * pages))};
  for (int part = 0; part < (latent ? 1 : 2); ++part) {
    tensors.push_back({"pages on their way to the host", "64 x P x cell", "", Leaf::kKvTransfer,
                       Bytes{bytes.count() / (latent ? 1 : 2)}});
  }
}

}  // namespace

bool has_host_tier(const Deployment& deployment) {
  return deployment.launch.on("enable-hierarchical-cache");
}

std::variant<std::optional<HostPool>, CacheRefusal> host_pool(const Deployment& deployment,
                                                              const CachePlan& plan, int stage) {
  if (!has_host_tier(deployment)) {
    return std::nullopt;
  }
  const CacheSizes sizes = cache_sizes(deployment, stage);
  const Slots slots = wanted(deployment, plan);
  if (slots.full <= 0) {
    return CacheRefusal{OutcomeKind::kConfigRejected,
                        kHostReserve - *deployment.assumed.host_memory,
                        "No host memory is left for HiCache after the 10 GiB reserve; set "
                        "--hicache-ratio or --hicache-size explicitly."};
  }
  HostPool pool;
  pool.tokens = paged(slots.full, deployment.page_size);
  double bytes = sizes.full_token * static_cast<double>(pool.tokens.count());
  if (plan.window_tokens > Tokens{0}) {
    pool.window_tokens = paged(slots.window, deployment.page_size);
    bytes += sizes.window_token * static_cast<double>(pool.window_tokens.count());
  }
  pool.bytes = Bytes{std::llround(bytes)};
  if (pool.tokens <= plan.tokens && deployment.rules.host_pool_covers_device) {
    return CacheRefusal{
        OutcomeKind::kConfigRejected,
        Bytes{std::llround(sizes.full_token *
                           static_cast<double>((plan.tokens - pool.tokens).count()))},
        "The host memory should be larger than the device memory with the current protocol"};
  }
  if (const auto host = allowance(deployment); host && pool.bytes > *host) {
    return CacheRefusal{
        OutcomeKind::kConfigRejected, pool.bytes - *host,
        fmt::format("Not enough host memory available. Requesting {:.2f} GB but only have {:.2f} "
                    "GB free. Please reduce the size of the hierarchical cache.",
                    static_cast<double>(pool.bytes.count()) / kGigabyte,
                    static_cast<double>(host->count()) / kGigabyte)};
  }
  if (deployment.rules.host_write_staging && layout(deployment) == "page_first") {
    add_staging(deployment, pool.tokens, false, stage, pool.staging);
    if (pool.window_tokens > Tokens{0}) {
      add_staging(deployment, pool.window_tokens, true, stage, pool.staging);
    }
  }
  return pool;
}

void check_host_tier(Deployment& deployment, Problems& problems) {
  if (!has_host_tier(deployment)) {
    return;
  }
  const launch::Launch& line = deployment.launch;
  const auto refuse = [&](const char* flag, std::string value, std::string expected,
                          std::string hint) {
    problems.add({"launch line", flag, std::move(value), std::move(expected), std::move(hint)});
  };
  if (!deployment.radix_cache) {
    refuse(
        "--enable-hierarchical-cache", "with --disable-radix-cache", "one of the two",
        "The arguments enable-hierarchical-cache and disable-radix-cache are mutually exclusive");
  }
  if (line.on("enable-lmcache")) {
    refuse("--enable-hierarchical-cache", "with --enable-lmcache", "one of the two",
           "--enable-lmcache and --enable-hierarchical-cache are mutually exclusive");
  }
  // Far above any host, and far below what 64 bits count.
  constexpr std::int64_t kMostGigabytes = 1'000'000;
  constexpr double kMostRatio = 1e4;
  const std::int64_t gigabytes = line.integer("hicache-size").value_or(0);
  const double ratio_asked = line.number("hicache-ratio").value_or(2);
  if (gigabytes > kMostGigabytes) {
    refuse("--hicache-size", std::to_string(gigabytes),
           fmt::format("GB, at most {}", kMostGigabytes), "");
  }
  if (gigabytes <= 0 && !(ratio_asked > 0 && ratio_asked <= kMostRatio)) {
    refuse("--hicache-ratio", fmt::format("{}", ratio_asked),
           fmt::format("above 0 and at most {}, or --hicache-size", kMostRatio), "");
  }
  if (const auto storage = line.text("hicache-storage-backend")) {
    deployment.warnings.push_back(fmt::format(
        "--hicache-storage-backend {} is not modelled: the plan has the host pool alone",
        *storage));
  } else if (line.text("hicache-host-memory-mode").value_or("cache") == "buffer_only") {
    refuse("--hicache-host-memory-mode", "buffer_only", "cache, or a --hicache-storage-backend",
           "host memory is only a staging buffer then");
  }
  if (models::has_recurrent_state(*deployment.model)) {
    deployment.warnings.emplace_back(
        "the host pool of recurrent states is not modelled: the plan has that of KV alone");
  }
  if (!deployment.assumed.host_memory) {
    deployment.assumptions.emplace_back(
        "the host has memory for the whole host tier (--assume host_memory_gib=N tells how much it "
        "has)");
  }
}

std::optional<std::int64_t> host_gigabytes_that_fit(const Deployment& deployment) {
  const auto host = allowance(deployment);
  // A page on top of what is asked.
  const std::int64_t most =
      host ? static_cast<std::int64_t>(static_cast<double>(host->count()) / kGigabyte) - 1 : 0;
  return most > 0 ? std::optional(most) : std::nullopt;
}

}  // namespace oomcast::sglang
