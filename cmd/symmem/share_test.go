package main

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"symmem/cmd/symmem/internal/doctor"
	"symmem/internal/mps"
	"symmem/internal/mps/mpstest"
	"symmem/internal/sys/systest"
)

// In these tests, two or more ranks share a GPU. Their kernels run in turns, unless the daemon of
// NVIDIA's Multi-Process Service (MPS) runs: then they run side by side. The command that starts
// the ranks also starts the daemon, and stops it when the ranks have ended. Here, the GPU is the
// software GPU, and mpstest replaces the daemon by a script that logs the commands that it
// receives.

// useOneSharedGPU makes processes find one software GPU, which ranks can share. It sets TMPDIR to a
// new folder, which it returns.
func useOneSharedGPU(t *testing.T) (temporaryFolder string) {
	t.Helper()
	useSoftwareGPU(t)
	t.Setenv("SOFTGPU_DEVICES", "1")
	t.Setenv("SOFTGPU_NCCL", "23203") // version 2.32.3, with which ranks can share GPUs
	temporaryFolder = t.TempDir()
	t.Setenv("TMPDIR", temporaryFolder)
	return temporaryFolder
}

// checkCleanup checks that the daemon was started and stopped once, according to its log, and that
// no temporary file remains.
func checkCleanup(t *testing.T, log, temporaryFolder string) {
	t.Helper()
	const want = "start of all\nquit\n" // all means that it uses all GPUs
	if text, err := os.ReadFile(log); err != nil || string(text) != want {
		t.Errorf("the daemon received the commands %q, %v; want %q", text, err, want)
	}

	if remaining, err := os.ReadDir(temporaryFolder); err != nil || len(remaining) > 0 {
		t.Errorf("temporary files remain: %v, %v", remaining, err)
	}
}

// TestDaemonRunsWhileRanksShareGPU checks that commands start the daemon for ranks that share a
// GPU, and stop it when the ranks have ended, successfully or not.
func TestDaemonRunsWhileRanksShareGPU(t *testing.T) {
	path := symmemBinary(t) // build before the environment changes
	folder := useOneSharedGPU(t)
	log := mpstest.Install(t)
	for name, args := range map[string][]string{
		"ranks succeed":   {"verify", "--backend=nccl", "--ranks=2", "--rounds=1", "--size=1Ki"},
		"ranks fail":      {"launch", "--share-gpus", "-n", "2", "--", "false"},
		"trial of doctor": {"doctor", "--backend=nccl", "--ranks=2"},
	} {
		t.Run(name, func(t *testing.T) {
			defer os.Remove(log) // the next case begins without a log
			cmd := systest.Command(t, systest.Patience, path, args...)
			output, _ := cmd.CombinedOutput() // one of the commands fails on purpose
			checkCleanup(t, log, folder)
			if !strings.Contains(string(output), "2 ranks share 1 GPU, side by side: results") {
				t.Errorf("output does not describe the sharing:\n%s", output)
			}
		})
	}

	t.Run("ranks do not start", func(t *testing.T) {
		const notAProgram = "/"
		cmd := systest.Command(t, systest.Patience, path, "launch", "--share-gpus", "-n", "2", "--",
			notAProgram)
		_, _ = cmd.CombinedOutput() // fails on purpose
		if _, err := os.Stat(log); err == nil {
			t.Error("a daemon was started without ranks")
		}
	})
}

// TestBrokenDaemonIsIgnored checks that kernels run in turns if the daemon cannot start. The
// command must print the error.
func TestBrokenDaemonIsIgnored(t *testing.T) {
	path := symmemBinary(t) // build before the environment changes
	useOneSharedGPU(t)
	mpstest.Install(t)
	t.Setenv(mpstest.FailVariable, "1")
	cmd := systest.Command(t, systest.Patience, path, "verify", "--backend=nccl", "--ranks=2",
		"--rounds=1", "--size=1Ki")
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("the command failed: %v\n%s", err, output)
	}

	for _, want := range []string{
		"in turns (starting the Multi-Process Service", // followed by the error
		mpstest.StartError,
	} {
		if !strings.Contains(string(output), want) {
			t.Errorf("the output does not contain %q:\n%s", want, output)
		}
	}
}

// TestSignalStopsDaemonAndRanks checks that a signal makes the command stop its ranks and the
// daemon, and exit with the code of the signal.
func TestSignalStopsDaemonAndRanks(t *testing.T) {
	path := symmemBinary(t) // build before the environment changes
	folder := useOneSharedGPU(t)
	log := mpstest.Install(t)
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			defer os.Remove(log) // the next case begins without a log
			code := interruptLaunch(t, path, signal)
			if want := 128 + int(signal); code != want {
				t.Errorf("exit code %d, want %d", code, want)
			}

			checkCleanup(t, log, folder)
		})
	}
}

// interruptLaunch starts two ranks that run until they are stopped, and sends a signal to the
// command that has started them. It returns the exit code of this command.
func interruptLaunch(t *testing.T, path string, signal syscall.Signal) (code int) {
	t.Helper()
	const rankProgram = "echo here; exec sleep 1000"
	cmd := systest.Command(t, systest.Patience, path, "launch", "--share-gpus", "-n", "2", "--",
		"sh", "-c", rankProgram)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}

	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	// Wait until a rank has printed something.
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}

	if err := cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}

	_ = cmd.Wait() // an error is expected: the exit code is not 0
	return cmd.ProcessState.ExitCode()
}

// TestEnvironmentOfRanksThatShareGPUs checks the variables that limit what each rank uses of a GPU.
// With 4 ranks on a GPU and MPS, a rank gets 25 % of the threads, and 16 of 64 hardware queues (the
// connections). A rank gets at most 32 queues. Shares are rounded down.
func TestEnvironmentOfRanksThatShareGPUs(t *testing.T) {
	env := []string{ // of the command that starts the ranks
		"HOME=/", "CUDA_DEVICE_MAX_CONNECTIONS=32", "NCCL_MAX_CTAS=9", "NCCL_MAX_NCHANNELS=",
	}
	withMPS := doctor.GPUSharing{IsServiceRunning: true}
	for name, test := range map[string]struct {
		sharing sharingPlan
		want    []string // sorted
	}{
		"4 ranks on 1 GPU": {
			sharing: sharingPlan{ranks: 4, gpus: 1, status: withMPS},
			want: []string{
				"CUDA_DEVICE_MAX_CONNECTIONS=16", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25", "HOME=/",
				"NCCL_MAX_CTAS=4", "NCCL_MAX_NCHANNELS=4", "NCCL_MULTI_RANK_GPU_ENABLE=1",
			},
		},
		"8 ranks on 1 GPU": {
			sharing: sharingPlan{ranks: 8, gpus: 1, status: withMPS},
			want: []string{
				"CUDA_DEVICE_MAX_CONNECTIONS=8", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=12", "HOME=/",
				"NCCL_MAX_CTAS=4", "NCCL_MAX_NCHANNELS=4", "NCCL_MULTI_RANK_GPU_ENABLE=1",
			},
		},
		"5 ranks on 4 GPUs, at most 2 on each": {
			sharing: sharingPlan{ranks: 5, gpus: 4, status: withMPS},
			want: []string{
				"CUDA_DEVICE_MAX_CONNECTIONS=32", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50", "HOME=/",
				"NCCL_MAX_CTAS=4", "NCCL_MAX_NCHANNELS=4", "NCCL_MULTI_RANK_GPU_ENABLE=1",
			},
		},
		"without MPS, with variables of the user": {
			sharing: sharingPlan{
				ranks: 2, gpus: 1,
				userEnv: []string{
					"NCCL_MAX_CTAS=9",     // is kept
					"NCCL_MAX_NCHANNELS=", // is replaced, because it is empty
				},
			},
			want: []string{
				"CUDA_DEVICE_MAX_CONNECTIONS=32", "HOME=/", "NCCL_MAX_CTAS=9", "NCCL_MAX_NCHANNELS=4",
				"NCCL_MULTI_RANK_GPU_ENABLE=1",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var noDaemon *mps.Daemon
			got := test.sharing.addSettings(env, noDaemon)
			slices.Sort(got)
			if !slices.Equal(got, test.want) {
				t.Errorf("environment %q, want %q", got, test.want)
			}
		})
	}
}
