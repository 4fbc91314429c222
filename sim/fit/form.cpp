#include "sim/fit/form.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "sim/core/error.hpp"
#include "sim/fit/least_squares.hpp"

namespace oomcast::fit {
namespace {

Eigen::MatrixXd design(const Form& form, const std::vector<Observation>& observations) {
  Eigen::MatrixXd out(static_cast<Eigen::Index>(observations.size()), unknowns(form.shape));
  for (Eigen::Index i = 0; i < out.rows(); ++i) {
    const auto& at = observations[static_cast<std::size_t>(i)].at;
    out(i, 0) = 1;
    if (form.shape == Shape::kTiles) {
      out(i, 1) = std::ceil(at[0] / form.tile);
    } else if (form.shape != Shape::kConstant) {
      out(i, 1) = at[0];
    }
    if (form.shape == Shape::kTwoVariables) {
      out(i, 2) = at[1];
    }
  }
  return out;
}

double scale_of(double fitted, double floor) {
  const double scale = std::max(std::abs(fitted), floor);
  return scale > 0 ? scale : 1;
}

// Columns differ by orders of magnitude: each is solved in its own unit.
std::optional<Solution> solve_scaled(Eigen::MatrixXd left, const Eigen::VectorXd& right) {
  Eigen::VectorXd units = left.colwise().norm();
  for (Eigen::Index i = 0; i < units.size(); ++i) {
    if (!(units[i] > 0)) {
      return std::nullopt;
    }
    left.col(i) /= units[i];
  }
  auto out = least_squares(left, right);
  if (out) {
    out->values = out->values.cwiseQuotient(units);
    out->standard_errors = out->standard_errors.cwiseQuotient(units);
  }
  return out;
}

// Each equation divided by the scale of the value it is about, and multiplied by its pull. That
// value is the fit's own: dividing by what was measured would favour whatever came out small.
std::optional<Solution> solve_about(const Eigen::MatrixXd& left, const Eigen::VectorXd& right,
                                    double floor, const Eigen::VectorXd& about,
                                    const Eigen::VectorXd& pulls) {
  const Eigen::VectorXd weights = about.binaryExpr(
      pulls, [floor](double value, double pull) { return pull / scale_of(value, floor); });
  return solve_scaled(weights.asDiagonal() * left, weights.cwiseProduct(right));
}

std::optional<Solution> solve_weighted(const Eigen::MatrixXd& left, const Eigen::VectorXd& right,
                                       double floor) {
  Eigen::VectorXd about = right;
  std::optional<Solution> out;
  constexpr int kRounds = 4;
  for (int round = 0; round < kRounds; ++round) {
    out = solve_about(left, right, floor, about, Eigen::VectorXd::Ones(right.size()));
    if (!out) {
      return std::nullopt;
    }
    about = left * out->values;
  }
  return out;
}

// At or below which three quarters of the values lie.
double third_quartile(std::vector<double> values) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(values.size() * 3 / 4);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

struct Kept {
  std::vector<Eigen::Index> rows;
  Solution solution;
};

Eigen::VectorXd shares_of(const Eigen::VectorXd& right, const Eigen::VectorXd& fitted,
                          double floor) {
  return (right - fitted).binaryExpr(fitted, [floor](double off, double value) {
    return off / scale_of(value, floor);
  });
}

// Shares of the fit that makes their sum least, not that of their squares: a few samples that are
// far off hardly move it.
std::optional<Eigen::VectorXd> robust_shares(const Form& form, const Eigen::MatrixXd& left,
                                             const Eigen::VectorXd& right) {
  if (right.size() == 0) {
    return std::nullopt;
  }
  Eigen::VectorXd about = Eigen::VectorXd::Constant(right.size(), right.cwiseAbs().mean());
  Eigen::VectorXd pulls = Eigen::VectorXd::Ones(right.size());
  Eigen::VectorXd shares;
  constexpr int kRounds = 30;
  static constexpr double kLeast = 1e-5;
  for (int round = 0; round < kRounds; ++round) {
    const auto solution = solve_about(left, right, form.floor, about, pulls);
    if (!solution) {
      return std::nullopt;
    }
    about = left * solution->values;
    shares = shares_of(right, about, form.floor);
    pulls = shares.unaryExpr(
        [](double share) { return 1 / std::sqrt(std::max(std::abs(share), kLeast)); });
  }
  return shares;
}

// Far from the rest, by the spread of the nearer three quarters: five standard deviations, and more
// than a percent (repeats that agree to the byte spread by nothing). Fewer samples than these tell
// no spread: of three, two that happen to agree would make the third an outlier.
constexpr std::int64_t kFewestThatSpread = 8;

std::vector<Eigen::Index> without_outliers(const Eigen::VectorXd& shares) {
  std::vector<double> sizes;
  for (const double share : shares) {
    sizes.push_back(std::abs(share));
  }
  constexpr double kNormal = 1 / 1.1503;  // standard deviation over that quartile, of a normal
  constexpr double kFar = 5;
  constexpr double kWorthSaying = 0.01;
  const double limit = std::max(kWorthSaying, kFar * kNormal * third_quartile(sizes));
  std::vector<Eigen::Index> kept;
  for (Eigen::Index i = 0; i < shares.size(); ++i) {
    if (std::abs(shares[i]) <= limit || shares.size() < kFewestThatSpread) {
      kept.push_back(i);
    }
  }
  return kept;
}

std::optional<Kept> solve_robustly(const Form& form, const Eigen::MatrixXd& left,
                                   const Eigen::VectorXd& right) {
  const auto shares = robust_shares(form, left, right);
  if (!shares) {
    return std::nullopt;
  }
  const std::vector<Eigen::Index> rows = without_outliers(*shares);
  auto solution = solve_weighted(left(rows, Eigen::all), right(rows), form.floor);
  return solution ? std::optional(Kept{rows, *std::move(solution)}) : std::nullopt;
}

std::string why_refused(const FormFit& fit, std::size_t kept) {
  constexpr std::size_t kFewest = 5;  // of which one may be an outlier
  if (kept * kFewest < fit.residuals.size() * (kFewest - 1)) {
    return fmt::format("{} of {} samples lie far from the others", fit.residuals.size() - kept,
                       fit.residuals.size());
  }
  if (!(fit.rms_share <= kLargestMisfit)) {
    return fmt::format("samples scatter by {:.1f} % around {}", fit.rms_share * 100,
                       to_string(fit.form));
  }
  return "";
}

// ln of the mean squared share, and the price of the coefficients.
double criterion(const FormFit& fit) {
  const auto n = static_cast<double>(fit.residuals.size());
  const auto k = static_cast<double>(unknowns(fit.form.shape) + 1);
  constexpr double kExact = 1e-9;  // differences below a billionth are rounding
  const double spread = std::max(fit.rms_share, kExact);
  const double few = n > k + 1 ? 2 * k * (k + 1) / (n - k - 1) : 1e6;
  return n * std::log(spread * spread) + 2 * k + few;
}

}  // namespace

std::string_view to_string(Shape shape) {
  constexpr std::array<std::string_view, 4> kNames = {"constant", "affine", "two_variables",
                                                      "tiles"};
  return kNames[static_cast<std::size_t>(shape)];
}

std::int64_t unknowns(Shape shape) {
  return shape == Shape::kConstant ? 1 : shape == Shape::kTwoVariables ? 3 : 2;
}

std::string to_string(const Form& form) {
  switch (form.shape) {
    case Shape::kConstant:
      return "a";
    case Shape::kAffine:
      return "a + b x";
    case Shape::kTwoVariables:
      return "a + b x + c z";
    case Shape::kTiles:
      return fmt::format("a + b ceil(x / {})", form.tile);
  }
  return "";
}

std::int64_t FormFit::outliers() const {
  return std::count_if(residuals.begin(), residuals.end(),
                       [](const Residual& residual) { return residual.outlier; });
}

FormFit fit_form(const Form& form, const std::vector<Observation>& observations) {
  FormFit out;
  out.form = form;
  const Eigen::MatrixXd left = design(form, observations);
  Eigen::VectorXd right(left.rows());
  for (Eigen::Index i = 0; i < right.size(); ++i) {
    right[i] = observations[static_cast<std::size_t>(i)].value;
  }
  const auto kept = solve_robustly(form, left, right);
  if (!kept) {
    out.refusal = fmt::format("{} samples do not tell the {} coefficients of {} apart",
                              observations.size(), unknowns(form.shape), to_string(form));
    out.rms_share = std::numeric_limits<double>::infinity();
    return out;
  }
  const Solution& solution = kept->solution;
  const double factor = solution.degrees > 0 ? interval_factor(solution.degrees) : 0;
  for (Eigen::Index i = 0; i < solution.values.size(); ++i) {
    const double half = factor * solution.standard_errors[i];
    out.coefficients.push_back(
        {solution.values[i], solution.values[i] - half, solution.values[i] + half});
  }
  const Eigen::VectorXd fitted = left * solution.values;
  const Eigen::VectorXd shares = shares_of(right, fitted, form.floor);
  for (Eigen::Index i = 0; i < right.size(); ++i) {
    out.residuals.push_back(
        {observations[static_cast<std::size_t>(i)].label, right[i], fitted[i], shares[i], true});
  }
  double squares = 0;
  for (const Eigen::Index row : kept->rows) {
    out.residuals[static_cast<std::size_t>(row)].outlier = false;
    squares += shares[row] * shares[row];
  }
  out.rms_share = std::sqrt(squares / static_cast<double>(kept->rows.size()));
  out.refusal = why_refused(out, kept->rows.size());
  return out;
}

FormFit choose_form(const std::vector<Form>& forms, const std::vector<Observation>& observations) {
  OOMCAST_CHECK(!forms.empty(), "no form is declared");
  std::optional<FormFit> best;
  for (const Form& form : forms) {
    FormFit fit = fit_form(form, observations);
    const bool better = !best || (fit.refusal.empty() != best->refusal.empty() ? fit.refusal.empty()
                                  : fit.refusal.empty() ? criterion(fit) < criterion(*best)
                                                        : fit.rms_share < best->rms_share);
    if (better) {
      best = std::move(fit);
    }
  }
  return *std::move(best);
}

std::string residual_table(const FormFit& fit) {
  constexpr int kHalfAxis = 20;
  double widest = 0;
  for (const Residual& residual : fit.residuals) {
    widest = std::max(widest, std::abs(residual.share));
  }
  std::string out =
      fmt::format("{:<44}{:>16}{:>16}{:>9}\n", to_string(fit.form), "measured", "fitted", "off");
  for (const Residual& residual : fit.residuals) {
    std::string axis(2 * kHalfAxis + 1, ' ');
    axis[kHalfAxis] = '|';
    const double place = widest > 0 ? residual.share / widest * kHalfAxis : 0;
    axis[static_cast<std::size_t>(kHalfAxis + std::lround(place))] = residual.outlier ? 'o' : '*';
    out += fmt::format("{:<44}{:>16.6g}{:>16.6g}{:>8.2f}%  {}\n", residual.label.substr(0, 43),
                       residual.measured, residual.fitted, residual.share * 100, axis);
  }
  return out;
}

}  // namespace oomcast::fit
