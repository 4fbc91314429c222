// Defaults that depend on the card. The table is SGLang 0.5.23's own arithmetic (facts page SGLang
// 2, produced by running it), for a dense model and no other flag.
#include "sim/engines/sglang/auto_settings.hpp"

#include <gtest/gtest.h>

namespace oomcast::sglang {
namespace {

const Version kNewest{{0, 5, 23}};
constexpr std::int64_t kH100 = 81559;

AutoInput on_card(std::int64_t mib, std::int64_t tp = 1) {
  AutoInput input;
  input.card_mib = mib;
  input.tp = tp;
  return input;
}

double fraction(const AutoInput& input, const Version& version = kNewest) {
  return auto_settings(startup_rules_for(version), input).mem_fraction;
}

struct Row {
  std::int64_t mib;
  double tp1;
  double tp4;
  double tp8;
  std::size_t decodes_tp1;
  std::size_t decodes_tp4;
  std::size_t prefills;
};

class CardTable : public testing::TestWithParam<Row> {};

TEST_P(CardTable, FractionsAndSizes) {
  const Row& row = GetParam();
  EXPECT_DOUBLE_EQ(fraction(on_card(row.mib, 1)), row.tp1);
  EXPECT_DOUBLE_EQ(fraction(on_card(row.mib, 4)), row.tp4);
  EXPECT_DOUBLE_EQ(fraction(on_card(row.mib, 8)), row.tp8);
  const StartupRules rules = startup_rules_for(kNewest);
  const auto decodes = [&](std::int64_t tp) {
    const AutoSettings settings = auto_settings(rules, on_card(row.mib, tp));
    return decode_capture_sizes(rules.capture_list, {settings.decode_max, 0}, false, true).size();
  };
  EXPECT_EQ(decodes(1), row.decodes_tp1);
  EXPECT_EQ(decodes(4), row.decodes_tp4);
  EXPECT_EQ(prefill_capture_sizes(auto_settings(rules, on_card(row.mib)).prefill_max).size(),
            row.prefills);
}

INSTANTIATE_TEST_SUITE_P(Cards, CardTable,
                         testing::Values(Row{16303, .751, .727, .696, 4, 4, 42},
                                         Row{24564, .704, .679, .658, 10, 24, 50},
                                         Row{32607, .777, .758, .742, 10, 24, 50},
                                         Row{40960, .823, .807, .795, 8, 24, 50},
                                         Row{46068, .843, .829, .818, 8, 24, 50},
                                         Row{81559, .830, .819, .812, 36, 52, 58},
                                         Row{143771, .903, .897, .893, 36, 52, 58},
                                         Row{183359, .854, .852, .849, 52, 52, 74}));

TEST(AutoSettings, VariantsOnAnH100) {
  AutoInput input = on_card(kH100);
  input.role = Role::kPrefill;
  EXPECT_DOUBLE_EQ(fraction(input), .836);
  input.role = Role::kDecode;
  EXPECT_DOUBLE_EQ(fraction(input), .874);
  input = on_card(kH100);
  input.max_running = 32;
  EXPECT_DOUBLE_EQ(fraction(input), .835);
  input = on_card(kH100);
  input.decode_graphs = false;
  input.prefill_graphs = false;
  EXPECT_DOUBLE_EQ(fraction(input), .841);
  input = on_card(kH100);
  input.prefill_graphs = false;
  EXPECT_DOUBLE_EQ(fraction(input), .835);
  input = on_card(kH100);
  input.chunk = 2048;
  EXPECT_DOUBLE_EQ(fraction(input), .874);
  input = on_card(kH100);
  input.decode_max = 128;
  EXPECT_DOUBLE_EQ(fraction(input), .833);
  input = on_card(kH100, 8);
  input.attention_dp = 8;
  EXPECT_DOUBLE_EQ(fraction(input), .586);
}

TEST(AutoSettings, OlderReleases) {
  // By ranks alone.
  EXPECT_DOUBLE_EQ(fraction(on_card(kH100), Version{{0, 4, 4}}), .88);
  EXPECT_DOUBLE_EQ(fraction(on_card(kH100, 8), Version{{0, 4, 6}}), .81);
  // Large cards: all but 13 or 18 GiB, or a share.
  constexpr std::int64_t kH200 = 143771;
  EXPECT_DOUBLE_EQ(fraction(on_card(kH200, 8), Version{{0, 4, 5}}), .81);
  EXPECT_DOUBLE_EQ(fraction(on_card(kH200, 8), Version{{0, 4, 6}}), (143771 - 13312) / 143771.0);
  EXPECT_DOUBLE_EQ(fraction(on_card(kH200, 8), Version{{0, 4, 7}}), (143771 - 18432) / 143771.0);
  EXPECT_DOUBLE_EQ(fraction(on_card(97871, 8), Version{{0, 4, 7}}), .88);
  EXPECT_DOUBLE_EQ(fraction(on_card(183359, 8), Version{{0, 4, 7}}), .79);
  // By class: (24564 - 2.9 x 1024) / 24564 = 0.8791, (81559 - 10 x 1024) / 81559 = 0.8744.
  EXPECT_DOUBLE_EQ(fraction(on_card(24564), Version{{0, 4, 9}}), .879);
  EXPECT_DOUBLE_EQ(fraction(on_card(kH100), Version{{0, 5, 0}}), .874);
  // 512 + 1.5 x 2048 + 2 x 24 + 128 = 3760 of 24564.
  AutoInput without = on_card(24564);
  without.prefill_graphs = false;
  EXPECT_DOUBLE_EQ(fraction(without, Version{{0, 5, 8}}), .847);
  // A draft was reserved for until it was measured.
  without.speculative = true;
  EXPECT_DOUBLE_EQ(fraction(without, Version{{0, 5, 8}}), .764);
}

TEST(CaptureSizes, WidenAndEndAtTheLargest) {
  EXPECT_EQ(decode_capture_sizes(CaptureList::kWidening, {8, 0}, false, true),
            (std::vector<std::int64_t>{1, 2, 4, 8}));
  EXPECT_EQ(decode_capture_sizes(CaptureList::kWidening, {13, 0}, false, true),
            (std::vector<std::int64_t>{1, 2, 4, 8, 12, 13}));
  EXPECT_EQ(decode_capture_sizes(CaptureList::kWidening, {3, 0}, false, false),
            (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(decode_capture_sizes(CaptureList::kWidening, {12, 0}, true, true),
            (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 10, 12}));
  // Once, a list for the card, cut or lengthened by 16s to the batch asked for.
  EXPECT_EQ(decode_capture_sizes(CaptureList::kStepsOf8, {20, 160}, false, true),
            (std::vector<std::int64_t>{1, 2, 4, 8, 16}));
  const std::vector<std::int64_t> longer =
      decode_capture_sizes(CaptureList::kStepsOf8, {200, 160}, false, true);
  EXPECT_EQ(std::vector<std::int64_t>(longer.end() - 3, longer.end()),
            (std::vector<std::int64_t>{160, 176, 192}));
  EXPECT_EQ(prefill_capture_sizes(64),
            (std::vector<std::int64_t>{4, 8, 12, 16, 20, 24, 28, 32, 48, 64}));
}

TEST(Multimodal, EncodersTakeFromTheFraction) {
  EXPECT_DOUBLE_EQ(multimodal_fraction_factor(24, 1024), .95);
  // Width 1152: complexity 1.265625.
  EXPECT_NEAR(multimodal_fraction_factor(24, 1152), .95 * (1 - .1 * .265625), 1e-12);
  EXPECT_DOUBLE_EQ(multimodal_fraction_factor(200, 8192), .95 * .8);
}

}  // namespace
}  // namespace oomcast::sglang
