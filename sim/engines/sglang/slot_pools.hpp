// The pools of slots: one slot a token for layers that see everything, for models with
// sliding-window layers one more for those, and for models with recurrent layers one of states, a
// slot a state. SGLang hands out slot numbers; no decision depends on which, so only counts are
// kept. With pages, slots of tokens are taken and given back in whole pages.
#pragma once

#include <cstdint>

#include "sim/core/error.hpp"
#include "sim/core/units.hpp"

namespace oomcast::sglang {

class SlotPool {
 public:
  explicit SlotPool(std::int64_t total) : total_(total), free_(total) {}

  [[nodiscard]] std::int64_t total() const { return total_; }
  [[nodiscard]] std::int64_t free() const { return free_; }
  void take(std::int64_t slots) {
    OOMCAST_CHECK(slots >= 0 && slots <= free_, "{} slots taken of {}", slots, free_);
    free_ -= slots;
  }
  void give(std::int64_t slots) {
    OOMCAST_CHECK(slots >= 0 && slots <= total_ - free_, "{} slots given back, {} are out", slots,
                  total_ - free_);
    free_ += slots;
  }

 private:
  std::int64_t total_;
  std::int64_t free_;
};

struct SlotPools {
  SlotPool full;
  SlotPool window;
  std::int64_t page = 1;
  bool windowed = false;
  SlotPool state{0};

  // Slots of the pages that hold positions [begin, end); begin is the start of a page.
  [[nodiscard]] std::int64_t slots(std::int64_t begin, std::int64_t end) const {
    return align_up(end, page) - begin;
  }
  [[nodiscard]] std::int64_t floor(std::int64_t position) const {
    return position - position % page;
  }
  // What every token can have: the scarcer of the two.
  [[nodiscard]] std::int64_t free() const {
    return windowed && window.free() < full.free() ? window.free() : full.free();
  }
  void take(std::int64_t slots) {
    full.take(slots);
    if (windowed) {
      window.take(slots);
    }
  }
};

}  // namespace oomcast::sglang
