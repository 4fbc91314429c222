// Counters that run by themselves, against counting by hand.
#include "sim/engines/sglang/running_batch.hpp"

#include <gtest/gtest.h>

namespace oomcast::sglang {
namespace {

class Batch {
 public:
  explicit Batch(std::int64_t page) : batch_(slots_, page) {}

  RunningBatch* operator->() { return &batch_; }
  Request& at(Slot slot) { return slots_[slot]; }
  Slot add(std::int64_t filled, std::int64_t max_output, bool pending = false) {
    const Slot slot = slots_.take();
    slots_[slot] = Request{};
    slots_[slot].serial = static_cast<std::uint64_t>(slot) + 1;
    slots_[slot].kv.filled = filled;
    slots_[slot].max_output = max_output;
    slots_[slot].output = pending ? 0 : 1;
    batch_.join(slot, pending);
    return slot;
  }
  std::vector<Slot> due(std::int64_t result) {
    std::vector<Slot> slots;
    for (const Row& row : batch_.take_due(result)) {
      slots.push_back(row.slot);
    }
    return slots;
  }

 private:
  RequestSlots slots_;
  RunningBatch batch_;
};

TEST(RunningBatch, CountersRunWithLaunchesAndResults) {
  Batch batch(4);
  const Slot first = batch.add(8, 100);
  batch->launch();
  const Slot second = batch.add(5, 100);
  batch->launch();
  batch->result();
  EXPECT_EQ(batch->filled(batch.at(first)), 10);
  EXPECT_EQ(batch->filled(batch.at(second)), 6);
  EXPECT_EQ(batch->output(batch.at(first)), 2);
  EXPECT_EQ(batch->output(batch.at(second)), 1);  // its first launch has no result yet
  EXPECT_EQ(batch->context(), 16);
  batch->result();
  batch->settle(first);
  EXPECT_EQ(batch.at(first).output, 3);
  EXPECT_EQ(batch.at(first).kv.filled, 10);
  EXPECT_EQ(batch.at(first).decodes, 2);
  batch->launch();
  EXPECT_EQ(batch->filled(batch.at(first)), 10);  // it does not count any more
  EXPECT_EQ(batch->context(), 7);
}

TEST(RunningBatch, PagesAreCountedByResidue) {
  for (const std::int64_t page : {1, 4, 8192}) {
    Batch batch(page);
    std::vector<Slot> members;
    for (const std::int64_t filled : {4, 5, 7, 8, 8192, 12}) {
      members.push_back(batch.add(filled, 1000));
    }
    for (int launch = 0; launch < 9; ++launch) {
      std::int64_t by_hand = 0;
      std::int64_t by_hand_next = 0;
      for (const Slot slot : members) {
        by_hand += batch->filled(batch.at(slot)) % page == 0 ? 1 : 0;
        by_hand_next += (batch->filled(batch.at(slot)) + 1) % page == 0 ? 1 : 0;
      }
      EXPECT_EQ(batch->at_page_end(), by_hand) << page << " " << launch;
      EXPECT_EQ(batch->at_page_end(1), by_hand_next) << page << " " << launch;
      batch->launch();
    }
  }
}

TEST(RunningBatch, MembersEndWithTheirLastResult) {
  Batch batch(1);
  const Slot three = batch.add(10, 3);          // has 1 of 3
  const Slot pending = batch.add(10, 3, true);  // its first is on its way
  const Slot two = batch.add(10, 2);
  EXPECT_EQ(batch->next_end(), 1);
  EXPECT_EQ(batch.due(1), std::vector<Slot>{two});
  EXPECT_EQ(batch.due(2), (std::vector<Slot>{three, pending}));
  batch->calendar_again(three);
  EXPECT_EQ(batch.due(2), std::vector<Slot>{three});
}

TEST(RunningBatch, WhoLeftIsNotDue) {
  Batch batch(1);
  const Slot gone = batch.add(10, 2);
  const Slot kept = batch.add(10, 2);
  batch->leave(gone);
  EXPECT_EQ(batch->size(), 1);
  EXPECT_EQ(batch.due(1), std::vector<Slot>{kept});
  EXPECT_EQ(batch->next_end(), kNever);
}

TEST(RunningBatch, AnAbortEndsWithTheNextResult) {
  Batch batch(1);
  const Slot slot = batch.add(10, 100);
  batch->launch();
  batch->result();
  batch->launch();
  batch->end_next(slot);
  EXPECT_EQ(batch->next_end(), 2);
}

// Results in flight come in the order of their launch, later ones in the new order.
TEST(RunningBatch, ReorderingSparesResultsInFlight) {
  Batch batch(1);
  const Slot first = batch.add(10, 2);
  const Slot second = batch.add(10, 2);
  batch->launch();
  batch->reorder({second, first});
  EXPECT_EQ(batch->front(), second);
  EXPECT_EQ(batch.due(1), (std::vector<Slot>{first, second}));
  batch->calendar_again(first);
  batch->calendar_again(second);
  batch->result();
  batch->launch();
  EXPECT_EQ(batch.due(2), (std::vector<Slot>{second, first}));
}

}  // namespace
}  // namespace oomcast::sglang
