package gpu

import (
	"errors"

	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// Code loads a cubin onto a GPU and looks up its kernels. Load and Unload must be called on a
// thread of the context.
type Code struct {
	// Object returns the cubin for a compute capability.
	Object func(major, minor int) ([]byte, error)

	Mu        ranked.Mutex[codeMu]
	module    cuda.Module              // guarded by Mu; set by Load
	functions map[string]cuda.Function // guarded by Mu
	// Overlaps reports whether launches use programmatic dependent launch. Such a kernel may start
	// before earlier kernels have ended, and waits for them itself. Load sets Overlaps.
	Overlaps bool
}

// Load loads all kernels. CUDA would otherwise load each kernel at its first launch, which could
// wait for a kernel that never ends. If a kernel of the process is already stuck, Load itself could
// wait forever, so it leaves the loading to the launches. (On an H200 with driver 580, such a
// launch returns and the wait for it has a deadline, but CUDA does not guarantee this.)
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

// Function returns the kernel with a name.
func (k *Code) Function(g *GPU, name string) (cuda.Function, error) {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	f, ok := k.functions[name]
	if ok {
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

// Unload unloads the kernels.
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
