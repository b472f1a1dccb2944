package gpu

import (
	"errors"

	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// Code holds the kernels of one object that a GPU has loaded. Load and Unload are called on a
// thread of the context.
type Code struct {
	// Object gives the object for a GPU of a compute capability.
	Object func(major, minor int) ([]byte, error)

	Mu        ranked.Mutex[codeMu]
	module    cuda.Module              // guarded by Mu; loaded at the first use
	functions map[string]cuda.Function // guarded by Mu
	// Overlaps reports whether kernels can be started before those ahead of them have ended, and wait
	// for these. It is set by Load.
	Overlaps bool
}

// Load brings the kernels onto the GPU: all of them, since one that came at its first launch could
// wait for a kernel that does not end. Where the process has such a kernel already they are left to
// their launches: to bring them here could wait forever. (On an H200 with driver 580 such a launch
// returns, and the wait for it has a deadline; CUDA does not promise either.)
func (k *Code) Load(g *GPU) error {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	if k.module != 0 {
		return nil
	}
	major, minor, err := g.ComputeCapability()
	if err != nil {
		return err
	}
	if k.Overlaps, err = g.LaunchesOverlap(); err != nil {
		return err
	}
	k.Overlaps = k.Overlaps && kernels.Wait(major)
	object, err := k.Object(major, minor)
	if err != nil {
		return err
	}
	module, err := g.CUDA.ModuleLoadData(object)
	if err != nil {
		return err
	}
	if !Stuck.Load() {
		err = g.CUDA.ModuleLoadFunctions(module)
	}
	if err != nil {
		return errors.Join(err, g.CUDA.ModuleUnload(module))
	}
	k.module, k.functions = module, map[string]cuda.Function{}
	return nil
}

// Function finds a kernel by its name.
func (k *Code) Function(g *GPU, name string) (cuda.Function, error) {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	f, known := k.functions[name]
	if known {
		return f, nil
	}
	if k.module == 0 {
		return 0, errors.New("the kernels are not loaded")
	}
	err := g.With(func(gpu *cuda.Driver) (err error) {
		f, err = gpu.ModuleGetFunction(k.module, name)
		return err
	})
	if err == nil {
		k.functions[name] = f
	}
	return f, err
}

// Unload gives the kernels back.
func (k *Code) Unload(g *GPU) error {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	if k.module == 0 {
		return nil
	}
	module := k.module
	k.module, k.functions = 0, nil
	return g.CUDA.ModuleUnload(module)
}
