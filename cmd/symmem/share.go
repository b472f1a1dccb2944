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

// sharingPlan lets ranks share GPUs, such as 8 ranks on 2 GPUs. A nil plan means no sharing.
//
// Kernels of ranks on the same GPU run in turns, unless NVIDIA's Multi-Process Service (MPS) runs
// them side by side. MPS needs a daemon, which runRanks starts and stops unless one is running.
type sharingPlan struct {
	rankCount, gpuCount int
	status              doctor.GPUSharing
	userEnv             []string // environment before CUDA libraries changed it
}

// planRanks returns the number of ranks to start and their plan. If there are fewer GPUs than
// ranks:
//
//   - An explicit number of ranks, given by the user, is kept. planRanks fails if they cannot share
//     the GPUs.
//   - A default number is reduced to the number of GPUs. It is kept, however, if there is a single
//     GPU that the ranks can share.
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
	plan, err := newSharingPlan(ranks, &library, userEnv)
	if err == nil {
		return ranks, plan, nil
	}

	if isExplicit {
		return 0, nil, fmt.Errorf("%w; use --ranks %d or --backend host", err, gpus)
	}

	return 1, nil, nil // one rank on the only GPU
}

// newSharingPlan returns a plan for this machine's GPUs, or an error if ranks cannot share them. A
// nil library skips the check of NCCL.
func newSharingPlan(ranks int, library *doctor.Library, userEnv []string) (*sharingPlan, error) {
	driver, gpus := doctor.InspectDriver()
	if driver.Error != "" {
		return nil, fmt.Errorf("finding GPUs for %d ranks to share: %s", ranks, driver.Error)
	}

	p := &sharingPlan{
		rankCount: ranks, gpuCount: len(gpus), userEnv: userEnv,
		status: doctor.InspectSharing(gpus, library, os.Getenv),
	}
	if p.status.Obstacle != "" {
		return nil, fmt.Errorf("%d ranks: this machine has %s, and ranks cannot share one: %s", ranks,
			p.gpuCountText(), p.status.Obstacle)
	}

	return p, nil
}

func (p *sharingPlan) gpuCountText() string {
	if p.gpuCount == 1 {
		return "1 GPU"
	}

	return fmt.Sprintf("%d GPUs", p.gpuCount)
}

// runRanks calls launch.Run. If the ranks share GPUs, it prints a message and keeps an MPS daemon
// running until the ranks have exited.
func runRanks(ctx context.Context, spec launch.Spec, plan *sharingPlan) (launch.Result, error) {
	if plan == nil {
		return launch.Run(ctx, spec)
	}

	// No signal may end this process before it has stopped the daemon.
	discardedSignals := make(chan os.Signal, 1) // ranks would inherit signal.Ignore
	signal.Notify(discardedSignals, syscall.SIGPIPE)
	defer signal.Stop(discardedSignals)
	forwardedSignals := make(chan os.Signal, 8) // read by launch.Run; room for a burst
	signal.Notify(forwardedSignals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(forwardedSignals)
	spec.Signals = forwardedSignals
	if spec.Env == nil {
		spec.Env = os.Environ()
	}

	daemon, description := plan.startDaemon(ctx)
	fmt.Fprintf(spec.Stderr, "symmem: %d ranks share %s, %s: results are valid, times are not\n",
		plan.rankCount, plan.gpuCountText(), description)
	spec.Env = plan.addSettings(spec.Env, daemon)
	result, err := launch.Run(ctx, spec)
	if daemon != nil {
		// The results are valid even if the daemon cannot be stopped.
		if closeErr := daemon.Close(); closeErr != nil {
			fmt.Fprintf(spec.Stderr, "symmem: %v\n", closeErr)
		}
	}

	return result, err
}

// startDaemon starts an MPS daemon unless one is running, and describes how kernels run. If it
// starts none, the daemon is nil.
func (p *sharingPlan) startDaemon(ctx context.Context) (daemon *mps.Daemon, description string) {
	_, isPipeSet := os.LookupEnv(mps.PipeVariable) // by the user
	switch {
	case p.status.IsServiceRunning:
		return nil, "side by side"
	case isPipeSet:
		return nil, "in turns (" + mps.PipeVariable + " names no daemon)"
	case p.status.ServiceProgram == "":
		return nil, "in turns (there is no nvidia-cuda-mps-control)"
	}

	daemon, err := mps.Start(ctx, p.userEnv)
	if err != nil {
		return nil, "in turns (" + err.Error() + ")"
	}

	return daemon, "side by side"
}

// addSettings returns a copy of env with variables for ranks that share GPUs. They are, in order of
// priority, from a new daemon, from the user (if not empty) and from the plan.
func (p *sharingPlan) addSettings(env []string, daemon *mps.Daemon) []string {
	settings := p.chooseSettings(daemon)
	for _, entry := range p.userEnv {
		name, value, _ := strings.Cut(entry, "=")
		if value != "" {
			delete(settings, name)
		}
	}

	if daemon != nil {
		maps.Copy(settings, daemon.Variables(p.gpuCount))
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

// chooseSettings returns variables that divide each GPU evenly between its ranks.
func (p *sharingPlan) chooseSettings(daemon *mps.Daemon) map[string]string {
	// Few channels keep NCCL's communicators small, so that those of all ranks fit into memory.
	settings := map[string]string{
		doctor.SharingVariable: "1", "NCCL_MAX_NCHANNELS": "4", "NCCL_MAX_CTAS": "4",
	}
	runsSideBySide := p.status.IsServiceRunning || daemon != nil
	if runsSideBySide {
		ranksPerGPU := (p.rankCount + p.gpuCount - 1) / p.gpuCount // rounded up
		percentage := max(1, 100/ranksPerGPU)
		settings["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = strconv.Itoa(percentage)
		queues := min(max(1, mpsQueuesPerGPU/ranksPerGPU), maxProcessQueues)
		settings["CUDA_DEVICE_MAX_CONNECTIONS"] = strconv.Itoa(queues)
	}

	return settings
}
