package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"symmem"
	"symmem/cmd/symmem/internal/doctor"
	"symmem/internal/launch"
	"symmem/internal/mps"
)

// gpuSharing describes how ranks share GPUs.
type gpuSharing struct {
	ranks, gpus int
	status      doctor.GPUSharing
	userEnv     []string // the environment of this process
}

// planRanks returns the number of ranks to start, and how they share GPUs (nil if they do not).
//
// If there are fewer GPUs than ranks, and the user set the number of ranks (isExplicit), the ranks
// must share the GPUs. If the number is a default, planRanks returns the number of GPUs, unless
// the machine has a single GPU that the ranks can share.
func planRanks(ranks int, isExplicit bool, backend string) (int, *gpuSharing, error) {
	userEnv := os.Environ()
	gpus, err := symmem.LocalRanks(backend)
	switch {
	case err != nil:
		return 0, nil, err
	case gpus == 0 || ranks <= gpus:
		return ranks, nil, nil
	case !isExplicit && gpus > 1:
		return gpus, nil, nil
	}
	library := doctor.InspectLibrary()
	sharingPlan, err := checkSharing(ranks, &library, userEnv)
	switch {
	case err == nil:
		return ranks, sharingPlan, nil
	case isExplicit:
		return 0, nil, fmt.Errorf("%w; use --ranks %d or --backend host", err, gpus)
	}
	return gpus, nil, nil // the default number of ranks is too large
}

// checkSharing returns how ranks share this machine's GPUs, or an error if they cannot. A nil
// library is not checked.
func checkSharing(ranks int, library *doctor.Library, userEnv []string) (*gpuSharing, error) {
	driver, gpus := doctor.InspectDriver()
	if driver.Error != "" {
		return nil, fmt.Errorf("finding GPUs for %d ranks to share: %s", ranks, driver.Error)
	}
	s := &gpuSharing{ranks, len(gpus), doctor.InspectSharing(gpus, library, os.Getenv), userEnv}
	if s.status.Obstacle != "" {
		return nil, fmt.Errorf("%d ranks: this machine has %s, and ranks cannot share one: %s", ranks,
			s.gpuCountText(), s.status.Obstacle)
	}
	return s, nil
}

func (s *gpuSharing) gpuCountText() string {
	if s.gpus == 1 {
		return "1 GPU"
	}
	return fmt.Sprintf("%d GPUs", s.gpus)
}

// runRanks calls launch.Run. For ranks that share GPUs, it prints a message and keeps a daemon of
// NVIDIA's Multi-Process Service (MPS) running meanwhile, unless there already is a daemon.
func runRanks(ctx context.Context, spec launch.Spec, s *gpuSharing) (launch.Result, error) {
	if s == nil {
		return launch.Run(ctx, spec)
	}
	// Signals must not end this process before it has stopped the daemon.
	ignoredSignals := make(chan os.Signal, 1)
	signal.Notify(ignoredSignals, syscall.SIGPIPE)
	defer signal.Stop(ignoredSignals)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	spec.Signals = signals
	if spec.Env == nil {
		spec.Env = os.Environ()
	}
	daemon, description := s.startDaemon(ctx)
	fmt.Fprintf(spec.Stderr, "symmem: %d ranks share %s, %s: results are valid, times are not\n",
		s.ranks, s.gpuCountText(), description)
	spec.Env = s.addSettings(spec.Env, daemon)
	result, err := launch.Run(ctx, spec)
	if daemon != nil {
		if closeErr := daemon.Close(); closeErr != nil { // the results are valid nevertheless
			fmt.Fprintf(spec.Stderr, "symmem: %v\n", closeErr)
		}
	}
	return result, err
}

// startDaemon starts an MPS daemon, unless one is running or the environment sets mps.PipeVariable,
// even to "". The description says how the ranks share the GPUs.
func (s *gpuSharing) startDaemon(ctx context.Context) (daemon *mps.Daemon, description string) {
	_, isSet := os.LookupEnv(mps.PipeVariable)
	switch {
	case s.status.IsServiceRunning:
		return nil, "side by side"
	case isSet:
		return nil, "in turns (" + mps.PipeVariable + " names no daemon)"
	case s.status.ServiceProgram == "":
		return nil, "in turns (there is no nvidia-cuda-mps-control)"
	}
	daemon, err := mps.Start(ctx, s.userEnv)
	if err != nil {
		return nil, "in turns (" + err.Error() + ")"
	}
	s.status.IsServiceRunning = true
	return daemon, "side by side"
}

const (
	maxProcessQueues = 32 // hardware queues that a process can open on a GPU
	mpsQueuesPerGPU  = 64 // hardware queues that all MPS clients of a GPU share
)

// addSettings returns env with variables for ranks that share GPUs. Non-empty variables of the user
// take precedence. The variables limit NCCL's channels, so that the communicators of all ranks fit
// into memory, and give each rank the same share of hardware queues and threads, so that the
// kernels of all ranks can run at the same time.
func (s *gpuSharing) addSettings(env []string, daemon *mps.Daemon) []string {
	ranksPerGPU := (s.ranks + s.gpus - 1) / s.gpus
	settings := map[string]string{
		doctor.SharingVariable: "1", "NCCL_MAX_NCHANNELS": "4", "NCCL_MAX_CTAS": "4",
	}
	if s.status.IsServiceRunning {
		settings["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = strconv.Itoa(max(1, 100/ranksPerGPU))
		queues := min(maxProcessQueues, max(1, mpsQueuesPerGPU/ranksPerGPU))
		settings["CUDA_DEVICE_MAX_CONNECTIONS"] = strconv.Itoa(queues)
	}
	for _, entry := range s.userEnv {
		name, value, _ := strings.Cut(entry, "=")
		if value != "" {
			delete(settings, name)
		}
	}
	if daemon != nil {
		maps.Copy(settings, daemon.Variables(s.gpus))
	}
	env = slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		_, isReplaced := settings[name]
		return isReplaced
	})
	for name, value := range settings {
		env = append(env, name+"="+value)
	}
	return env
}
