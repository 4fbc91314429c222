// Linear least squares with what it says of its own certainty.
#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <optional>

namespace oomcast::fit {

struct Solution {
  Eigen::VectorXd values;           // one a column
  Eigen::VectorXd standard_errors;  // of the values; zero where no equation is left to tell
  Eigen::VectorXd residuals;        // right - left * values, one an equation
  std::int64_t degrees = 0;         // equations beyond the unknowns
};

// The values that make |left * values - right| least; nullopt where the columns do not tell them
// apart, there are fewer equations than columns, or anything is not finite.
std::optional<Solution> least_squares(const Eigen::MatrixXd& left, const Eigen::VectorXd& right);

// Half the width of the two-sided 95 % interval in standard errors (Student's t); degrees >= 1.
double interval_factor(std::int64_t degrees);

}  // namespace oomcast::fit
