package gpu

import (
	"errors"

	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// CubinFunc returns a cubin, the machine code of kernels, for a compute capability such as 9.0.
type CubinFunc func(major, minor int) ([]byte, error)

// Code loads the kernels of several cubins onto a GPU. Kernel names must be unique across all
// cubins. Load and Unload require a current context.
type Code struct {
	CubinFuncs []CubinFunc
	CanOverlap bool // a kernel can start before the previous one exits; constant after Load

	Mu        ranked.Mutex[codeMu]     // guards the following fields
	modules   []cuda.Module            // loaded cubins; nil before Load
	functions map[string]cuda.Function // cache of kernels by name
}

// Load loads all cubins and their kernels, unless they are loaded. Otherwise, the first launch of
// each kernel would load it, and might wait for running kernels.
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

	canDeviceOverlap, err := g.CanOverlapLaunches()
	if err != nil {
		return err
	}

	c.CanOverlap = canDeviceOverlap && kernels.CanOverlap(major)
	c.functions = map[string]cuda.Function{}
	for _, cubinFunc := range c.CubinFuncs {
		if err := c.loadCubin(g, cubinFunc, major, minor); err != nil {
			unloadErr := c.unload(g)
			return errors.Join(err, unloadErr)
		}
	}

	return nil
}

// loadCubin must be called with c.Mu held.
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
		// ModuleLoadFunctions could wait forever for a stuck kernel. The first launch of each kernel
		// loads it instead, which does not wait on an H200 with driver 580.
		return nil
	}

	return g.CUDA.ModuleLoadFunctions(module)
}

// Function returns the kernel with the given name.
func (c *Code) Function(g *GPU, name string) (cuda.Function, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if function, isCached := c.functions[name]; isCached {
		return function, nil
	}

	function, err := c.findFunction(g, name)
	if err == nil {
		c.functions[name] = function
	}

	return function, err
}

// findFunction searches all modules. The caller must hold c.Mu.
func (c *Code) findFunction(g *GPU, name string) (function cuda.Function, err error) {
	if len(c.modules) == 0 {
		return 0, errors.New("the kernels are not loaded")
	}

	for _, module := range c.modules {
		err = g.With(func(api *cuda.Driver) error {
			function, err = api.ModuleGetFunction(module, name)
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

// unload must be called with c.Mu held.
func (c *Code) unload(g *GPU) error {
	var errs []error
	for _, module := range c.modules {
		errs = append(errs, g.CUDA.ModuleUnload(module))
	}

	c.modules = nil
	c.functions = nil
	return errors.Join(errs...)
}
