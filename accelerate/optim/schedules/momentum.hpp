// SPDX-License-Identifier: Apache-2.0
// Private: the momentum of a parameter group as one number for every optimizer type.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace accelerate::optim {

/// \param schedule  Name of the calling schedule.
/// \param reason    Reason for the requirement, and the remedy.
/// \throws Error (usage) unless each group has a momentum (SGD, RMSprop) or betas (Adam, AdamW).
void check_has_momentum(const torch::optim::Optimizer& optimizer, std::string_view schedule, std::string_view reason,
                        std::string_view remedy = "use another optimizer, or a schedule without momentum");

/// True for Adam and AdamW. PyTorch's schedules save this flag.
bool momentum_is_beta1(const torch::optim::Optimizer& optimizer);

/// The momentum of each group, or beta1 for Adam and AdamW. All groups must have one.
std::vector<double> momenta_of(const torch::optim::Optimizer& optimizer);
/// \param momenta  One per group; an unset entry leaves its group unchanged, an empty list leaves all unchanged.
void set_momenta(torch::optim::Optimizer& optimizer, const std::vector<std::optional<double>>& momenta);

}  // namespace accelerate::optim
