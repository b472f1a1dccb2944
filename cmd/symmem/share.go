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

// If a command starts more ranks than there are GPUs, the ranks must share the GPUs: for example, 8
// ranks on 2 GPUs, 4 on each. By default, the kernels of the 4 ranks run in turns. NVIDIA's
// Multi-Process Service (MPS) lets them run side by side. It needs a daemon, which the command
// starts and later stops, unless a daemon is already running.

// sharingPlan describes how ranks share GPUs. A nil *sharingPlan means that they share none.
type sharingPlan struct {
	ranks, gpus int // how many there are
	status      doctor.GPUSharing
	userEnv     []string // this process's environment before libraries could change it
}

// planRanks returns the number of ranks to start, and how they share GPUs. isExplicit states
// whether the user has set the given number of ranks, or it is a default.
//
// Ranks need to share only if there are fewer GPUs. In this case, an explicit number means that
// they must. If the number is a default and there are several GPUs, planRanks returns their number
// instead. If there is one GPU, the ranks share it if they can, and otherwise there is one rank.
func planRanks(ranks int, isExplicit bool, backend string) (int, *sharingPlan, error) {
	userEnv := os.Environ() // before LocalRanks loads libraries, which may set variables
	gpus, err := symmem.LocalRanks(backend)
	if err != nil {
		return 0, nil, err
	}

	isHostBackend := gpus == 0
	if isHostBackend || ranks <= gpus {
		return ranks, nil, nil
	}

	if !isExplicit && gpus > 1 {
		return gpus, nil, nil
	}

	library := doctor.InspectLibrary()
	plan, err := checkSharing(ranks, &library, userEnv)
	if err == nil {
		return ranks, plan, nil
	}

	if isExplicit {
		return 0, nil, fmt.Errorf("%w; use --ranks %d or --backend host", err, gpus)
	}

	return gpus, nil, nil // one rank
}

// checkSharing returns how ranks share this machine's GPUs, or an error if they cannot. It checks
// the version of library (NCCL), unless library is nil.
func checkSharing(ranks int, library *doctor.Library, userEnv []string) (*sharingPlan, error) {
	driver, gpus := doctor.InspectDriver()
	if driver.Error != "" {
		return nil, fmt.Errorf("finding GPUs for %d ranks to share: %s", ranks, driver.Error)
	}

	s := &sharingPlan{
		ranks: ranks, gpus: len(gpus), userEnv: userEnv,
		status: doctor.InspectSharing(gpus, library, os.Getenv),
	}
	if s.status.Obstacle != "" {
		return nil, fmt.Errorf("%d ranks: this machine has %s, and ranks cannot share one: %s", ranks,
			s.gpuCountText(), s.status.Obstacle)
	}

	return s, nil
}

func (s *sharingPlan) gpuCountText() string {
	if s.gpus == 1 {
		return "1 GPU"
	}

	return fmt.Sprintf("%d GPUs", s.gpus)
}

// runRanks calls launch.Run. If the ranks share GPUs, it first prints a message, and a daemon runs
// until the ranks have exited.
func runRanks(ctx context.Context, spec launch.Spec, s *sharingPlan) (launch.Result, error) {
	if s == nil {
		return launch.Run(ctx, spec)
	}

	// These signals must not end this process before it has stopped the daemon. launch.Run forwards
	// them to the ranks, except SIGPIPE.
	ignoredSignals := make(chan os.Signal, 1) // is not read; signals that do not fit are dropped
	signal.Notify(ignoredSignals, syscall.SIGPIPE)
	defer signal.Stop(ignoredSignals)
	forwardedSignals := make(chan os.Signal, 8) // enough for signals in quick succession
	signal.Notify(forwardedSignals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(forwardedSignals)
	spec.Signals = forwardedSignals
	if spec.Env == nil {
		spec.Env = os.Environ()
	}

	daemon, description := s.startDaemon(ctx)
	fmt.Fprintf(spec.Stderr, "symmem: %d ranks share %s, %s: results are valid, times are not\n",
		s.ranks, s.gpuCountText(), description)
	spec.Env = s.addSettings(spec.Env, daemon)
	result, err := launch.Run(ctx, spec)
	if daemon != nil {
		closeErr := daemon.Close()
		if closeErr != nil { // is only printed, because the results are valid
			fmt.Fprintf(spec.Stderr, "symmem: %v\n", closeErr)
		}
	}

	return result, err
}

// startDaemon starts a daemon, unless one is running. It returns nil if it has started none. The
// description says how the ranks share the GPUs.
func (s *sharingPlan) startDaemon(ctx context.Context) (daemon *mps.Daemon, description string) {
	_, isFolderSet := os.LookupEnv(mps.PipeVariable) // the folder of the user's daemon, or ""
	switch {
	case s.status.IsServiceRunning:
		return nil, "side by side"
	case isFolderSet: // the user has chosen a daemon, or no daemon
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

// addSettings returns a copy of env with variables for ranks that share GPUs. Variables that the
// user has set have precedence, unless they are empty. If daemon is not nil, its variables replace
// even these.
func (s *sharingPlan) addSettings(env []string, daemon *mps.Daemon) []string {
	settings := s.chooseSettings()
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

const (
	maxProcessQueues = 32 // hardware queues that a process can open on a GPU
	mpsQueuesPerGPU  = 64 // hardware queues that all MPS clients of a GPU share
)

// chooseSettings returns variables that divide each GPU between its ranks. They limit the channels
// of NCCL, so that the communicators of all ranks fit into memory. With MPS, they also give each
// rank the same share of threads and hardware queues, so that kernels of all ranks can run at the
// same time.
func (s *sharingPlan) chooseSettings() map[string]string {
	settings := map[string]string{
		doctor.SharingVariable: "1", "NCCL_MAX_NCHANNELS": "4", "NCCL_MAX_CTAS": "4",
	}
	if s.status.IsServiceRunning {
		ranksPerGPU := (s.ranks + s.gpus - 1) / s.gpus // rounded up
		percentage := max(1, 100/ranksPerGPU)
		settings["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = strconv.Itoa(percentage)
		queues := min(maxProcessQueues, max(1, mpsQueuesPerGPU/ranksPerGPU))
		settings["CUDA_DEVICE_MAX_CONNECTIONS"] = strconv.Itoa(queues)
	}

	return settings
}
