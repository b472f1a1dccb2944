package gpu

import (
	"errors"

	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// ObjectFunc returns the cubin for a compute capability.
type ObjectFunc func(major, minor int) ([]byte, error)

// Code loads cubins onto a GPU. The context must be current on threads that call Load and Unload.
type Code struct {
	// Objects lists the cubins. Each kernel is in only one of them.
	Objects []ObjectFunc

	Mu        ranked.Mutex[codeMu]
	modules   []cuda.Module            // guarded by Mu; set by Load
	functions map[string]cuda.Function // guarded by Mu
	// Overlaps is set by Load if a kernel may start before earlier kernels have exited (CUDA's
	// programmatic dependent launch).
	Overlaps bool
}

// Load loads all kernels in advance, because the first launch of a kernel that is not loaded could
// wait for another kernel that never exits. If a kernel is already stuck, Load itself could wait
// forever, so Load leaves each kernel to its first launch. Such a launch returns on an H200 with
// driver 580.
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
	if c.Overlaps, err = g.CanOverlapLaunches(); err != nil {
		return err
	}
	c.Overlaps = c.Overlaps && kernels.CanOverlap(major)
	c.functions = map[string]cuda.Function{}
	for _, object := range c.Objects {
		if err := c.load(g, object, major, minor); err != nil {
			return errors.Join(err, c.unload(g))
		}
	}
	return nil
}

func (c *Code) load(g *GPU, objectFor ObjectFunc, major, minor int) error {
	object, err := objectFor(major, minor)
	if err != nil {
		return err
	}
	module, err := g.CUDA.ModuleLoadData(object)
	if err != nil {
		return err
	}
	c.modules = append(c.modules, module)
	if Stuck.Load() {
		return nil
	}
	return g.CUDA.ModuleLoadFunctions(module)
}

// Function returns the kernel with the given name.
func (c *Code) Function(g *GPU, name string) (cuda.Function, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	f, ok := c.functions[name]
	if ok {
		return f, nil
	}
	err := errors.New("the kernels are not loaded")
	for _, module := range c.modules {
		err = g.With(func(gpu *cuda.Driver) (err error) {
			f, err = gpu.ModuleGetFunction(module, name)
			return err
		})
		if err == nil {
			break
		}
	}
	if err == nil {
		c.functions[name] = f
	}
	return f, err
}

// Unload unloads the kernels.
func (c *Code) Unload(g *GPU) error {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.unload(g)
}

func (c *Code) unload(g *GPU) error {
	var errs []error
	for _, module := range c.modules {
		errs = append(errs, g.CUDA.ModuleUnload(module))
	}
	c.modules, c.functions = nil, nil
	return errors.Join(errs...)
}
