// SPDX-License-Identifier: Apache-2.0
// Private: the momentum of a parameter group, as one number whatever the optimizer calls it.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace accelerate::optim {

/// Throws Error (usage) unless each group has a momentum (SGD, RMSprop) or betas (Adam, AdamW).
/// schedule   who asks
/// why        it needs one, and what to do
void check_has_momentum(const torch::optim::Optimizer& optimizer, std::string_view schedule, std::string_view why,
                        std::string_view remedy = "take another optimizer, or a rule without momentum");

/// Adam's and AdamW's is; PyTorch's schedules remember that.
bool momentum_is_beta1(const torch::optim::Optimizer& optimizer);

/// The momentum of each group, of Adam and AdamW beta1. They all have one.
std::vector<double> momenta_of(const torch::optim::Optimizer& optimizer);
/// momenta   one of each group; none is left alone, an empty list leaves all
void set_momenta(torch::optim::Optimizer& optimizer, const std::vector<std::optional<double>>& momenta);

}  // namespace accelerate::optim
