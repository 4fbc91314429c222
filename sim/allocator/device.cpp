#include "sim/allocator/device.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "sim/core/digest.hpp"
#include "sim/core/error.hpp"

namespace oomcast::allocator {
namespace {

constexpr std::int64_t kLowestAddress = std::int64_t{1} << 40;
constexpr std::int64_t kHighestAddress = std::int64_t{1} << 46;
constexpr std::int64_t kEndOfAddresses = std::int64_t{1} << 62;

std::int64_t in_units(std::int64_t size) { return align_up(size, kDriverUnit.count()); }

}  // namespace

Device::Device(const DeviceConfig& config)
    : config_(config), used_(config.base_used.count() + config.other_processes.count()) {
  const auto refuse = [](const char* place, Bytes value, const std::string& expected) {
    throw ConfigError(Problem{"device", place, fmt::format("{}", value.count()), expected, {}});
  };
  if (config.total <= Bytes{} || config.total > kMaxDeviceBytes) {
    refuse("total", config.total, fmt::format("bytes from 1 to {}", kMaxDeviceBytes.count()));
  }
  if (config.base_used < Bytes{} || config.other_processes < Bytes{} ||
      config.base_used > config.total || config.other_processes > config.total ||
      used_ > config.total.count()) {
    refuse("used", config.base_used, "bytes in use from 0 to the device's total");
  }
  switch (config.addresses) {
    case AddressPolicy::kAscending:
      next_ = kLowestAddress;
      break;
    case AddressPolicy::kDescending:
      next_ = kHighestAddress;
      break;
    case AddressPolicy::kFirstFit:
      gaps_.push_back({kLowestAddress, kEndOfAddresses - kLowestAddress});
      break;
  }
}

bool Device::take(std::int64_t size) {
  if (size > config_.total.count() - used_) {
    return false;
  }
  used_ += size;
  highest_ = std::max(highest_, used_);
  return true;
}

std::optional<std::int64_t> Device::allocate(Bytes size) {
  const std::int64_t units = in_units(size.count());
  if (!take(units)) {
    return std::nullopt;
  }
  return reserve_addresses(size);
}

void Device::release(std::int64_t address, Bytes size) {
  used_ -= in_units(size.count());
  release_addresses(address, size);
}

std::int64_t Device::reserve_addresses(Bytes size) {
  const std::int64_t span = in_units(size.count());
  if (config_.addresses == AddressPolicy::kAscending) {
    if (span > kEndOfAddresses - next_) {
      detail::throw_overflow("address +", next_, span);
    }
    return std::exchange(next_, next_ + span);
  }
  if (config_.addresses == AddressPolicy::kDescending) {
    if (span >= next_) {
      detail::throw_overflow("address -", next_, span);
    }
    return next_ -= span;
  }
  const auto gap = std::find_if(gaps_.begin(), gaps_.end(),
                                [&](const Gap& candidate) { return candidate.size >= span; });
  if (gap == gaps_.end()) {
    detail::throw_overflow("address +", gaps_.empty() ? 0 : gaps_.back().address, span);
  }
  const std::int64_t address = gap->address;
  if (gap->size == span) {
    gaps_.erase(gap);
  } else {
    gap->address += span;
    gap->size -= span;
  }
  return address;
}

void Device::release_addresses(std::int64_t address, Bytes size) {
  if (config_.addresses != AddressPolicy::kFirstFit) {
    return;
  }
  const std::int64_t span = in_units(size.count());
  auto after = std::lower_bound(gaps_.begin(), gaps_.end(), address,
                                [](const Gap& gap, std::int64_t at) { return gap.address < at; });
  const bool joins_after = after != gaps_.end() && after->address == address + span;
  const bool joins_before =
      after != gaps_.begin() && std::prev(after)->address + std::prev(after)->size == address;
  if (joins_before && joins_after) {
    std::prev(after)->size += span + after->size;
    gaps_.erase(after);
  } else if (joins_before) {
    std::prev(after)->size += span;
  } else if (joins_after) {
    after->address = address;
    after->size += span;
  } else {
    gaps_.insert(after, {address, span});
  }
}

bool Device::create_pages(Bytes page, std::int64_t count) {
  return take(in_units(page.count()) * count);
}

void Device::destroy_pages(Bytes page, std::int64_t count) {
  used_ -= in_units(page.count()) * count;
}

bool Device::take_outside(Bytes size) { return take(in_units(size.count())); }

void Device::return_outside(Bytes size) {
  OOMCAST_CHECK(size >= Bytes{} && in_units(size.count()) <= used_, "returned {} of {} in use",
                size.count(), used_);
  used_ -= in_units(size.count());
}

std::uint64_t Device::state_digest() const {
  Digest digest;
  digest.add_word(static_cast<std::uint64_t>(used_));
  digest.add_word(static_cast<std::uint64_t>(next_));
  for (const Gap& gap : gaps_) {
    digest.add_word(static_cast<std::uint64_t>(gap.address));
  }
  return digest.value();
}

}  // namespace oomcast::allocator
