// Measurements -> coefficients, in declared forms only.
//
//   constant        y = a
//   affine          y = a + b x
//   two_variables   y = a + b x + c z
//   tiles           y = a + b ceil(x / tile)      whole tiles of a size the form names
//
// An error counts in proportion to the fitted value, but below `floor` as if it were of `floor`:
// measurements scatter by a share of what they measure, and counters of memory move in granules.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace oomcast::fit {

enum class Shape : std::uint8_t { kConstant, kAffine, kTwoVariables, kTiles };
std::string_view to_string(Shape shape);

struct Form {
  Shape shape = Shape::kConstant;
  double tile = 1;   // of kTiles
  double floor = 0;  // in the unit of y, >= 0
};
// Coefficients of a form: 1 to 3.
std::int64_t unknowns(Shape shape);
// "a + b x"
std::string to_string(const Form& form);

struct Observation {
  std::array<double, 2> at{};  // x and z, as far as the form has them
  double value = 0;
  std::string label;  // "graph nodes=64, repeat 2", for tables
};

struct Estimate {
  double value = 0;
  double low = 0;  // 95 % confidence
  double high = 0;
};

struct Residual {
  std::string label;
  double measured = 0;
  double fitted = 0;
  double share = 0;      // (measured - fitted) / larger of |fitted| and floor
  bool outlier = false;  // left out of the fit
};

struct FormFit {
  Form form;
  std::vector<Estimate> coefficients;  // a, b, c; empty where it could not be solved
  double rms_share = 0;                // root mean square of `share` over what was fitted
  std::vector<Residual> residuals;     // one an observation, in their order
  // Why the observations do not have this form; empty: they have it.
  std::string refusal;

  [[nodiscard]] std::int64_t outliers() const;
};

// Refused are fits whose root mean square share is above this, or with more than a fifth outliers.
inline constexpr double kLargestMisfit = 0.1;

FormFit fit_form(const Form& form, const std::vector<Observation>& observations);

// The form of `forms` that explains most for the fewest coefficients (corrected Akaike criterion),
// among those that are not refused; where all are, the refused one with the smallest misfit.
FormFit choose_form(const std::vector<Form>& forms, const std::vector<Observation>& observations);

// A row an observation: measured, fitted, the difference in percent and as a mark on an axis.
std::string residual_table(const FormFit& fit);

}  // namespace oomcast::fit
