package gpu

import (
	"errors"

	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// CubinFunc returns a cubin: a file of kernels that are compiled for a compute capability. For
// example, major 9 and minor 0 are the capability of an H200.
type CubinFunc func(major, minor int) ([]byte, error)

// Code loads cubins onto a GPU. A loaded cubin is a module in CUDA, and a kernel is a function. The
// context must be current on threads that call Load and Unload.
type Code struct {
	CubinFuncs []CubinFunc // no two cubins may have a kernel of the same name

	Mu        ranked.Mutex[codeMu]
	modules   []cuda.Module            // guarded by Mu; nil before Load
	functions map[string]cuda.Function // earlier results of Function, by name; guarded by Mu
	// CanOverlap is set if kernels can start before earlier ones have exited. Load sets it.
	CanOverlap bool
}

// Load loads the cubins and their kernels, unless they are loaded.
//
// Without Load, CUDA would load each kernel at its first launch. Such a launch could wait for
// another kernel that never exits. If the process already has such a kernel (Stuck), Load could
// also wait for it. In that case, Load loads the cubins without their kernels, and CUDA loads these
// at their first launches. On an H200 with driver 580, these launches do not wait.
func (c *Code) Load(g *GPU) error {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.modules != nil {
		return nil
	}

	major, minor, err := g.ComputeCapability()
	if err != nil {
		return err
	}

	gpuCanOverlap, err := g.CanOverlapLaunches()
	if err != nil {
		return err
	}

	c.CanOverlap = gpuCanOverlap && kernels.CanOverlap(major)
	c.functions = map[string]cuda.Function{}
	for _, cubinFunc := range c.CubinFuncs {
		if err := c.loadCubin(g, cubinFunc, major, minor); err != nil {
			unloadErr := c.unload(g)
			return errors.Join(err, unloadErr)
		}
	}

	return nil
}

// loadCubin loads a cubin for a compute capability. The caller must hold c.Mu.
func (c *Code) loadCubin(g *GPU, cubinFunc CubinFunc, major, minor int) error {
	cubin, err := cubinFunc(major, minor)
	if err != nil {
		return err
	}

	module, err := g.CUDA.ModuleLoadData(cubin)
	if err != nil {
		return err
	}

	c.modules = append(c.modules, module)
	if Stuck.Load() {
		return nil
	}

	return g.CUDA.ModuleLoadFunctions(module)
}

// Function returns the loaded kernel with the given name.
func (c *Code) Function(g *GPU, name string) (cuda.Function, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if function, isKnown := c.functions[name]; isKnown {
		return function, nil
	}

	function, err := c.findFunction(g, name)
	if err == nil {
		c.functions[name] = function
	}

	return function, err
}

// findFunction looks for a kernel in all modules. If none has it, findFunction returns the error of
// the last one. The caller must hold c.Mu.
func (c *Code) findFunction(g *GPU, name string) (function cuda.Function, err error) {
	err = errors.New("the kernels are not loaded") // for the case that there are no modules
	for _, module := range c.modules {
		err = g.With(func(gpu *cuda.Driver) (err error) {
			function, err = gpu.ModuleGetFunction(module, name)
			return err
		})
		if err == nil {
			return function, nil
		}
	}

	return function, err
}

// Unload unloads the cubins.
func (c *Code) Unload(g *GPU) error {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.unload(g)
}

// unload is Unload for callers that hold c.Mu.
func (c *Code) unload(g *GPU) error {
	var errs []error
	for _, module := range c.modules {
		errs = append(errs, g.CUDA.ModuleUnload(module))
	}

	c.modules = nil
	c.functions = nil
	return errors.Join(errs...)
}
