// The operations of the contract, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace parlay {

// Adds the class `Operations`, with an operation of `kernels.base.Kernels` a static method, to the module.
void bind_operations(nanobind::module_& module);

}  // namespace parlay
