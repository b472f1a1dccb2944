package main

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"symmem/cmd/symmem/internal/doctor"
	"symmem/internal/mps/mpstest"
	"symmem/internal/sys/systest"
)

// useOneSharedGPU makes processes find one software GPU, which ranks can share. It sets TMPDIR to a
// new folder, which it returns.
func useOneSharedGPU(t *testing.T) (folder string) {
	t.Helper()
	useSoftwareGPU(t)
	t.Setenv("SOFTGPU_DEVICES", "1")
	t.Setenv("SOFTGPU_NCCL", "23203") // version 2.32.3, with which ranks can share GPUs
	folder = t.TempDir()
	t.Setenv("TMPDIR", folder)
	return folder
}

// checkCleanup checks that the daemon of NVIDIA's Multi-Process Service was started and stopped
// once, and that TMPDIR (folder) is empty. The daemon, which mpstest replaces, writes its commands
// to log.
func checkCleanup(t *testing.T, log, folder string) {
	t.Helper()
	const want = "start of all\nquit\n" // all means that it uses all GPUs
	if text, err := os.ReadFile(log); err != nil || string(text) != want {
		t.Errorf("the daemon received the commands %q, %v; want %q", text, err, want)
	}

	if remaining, err := os.ReadDir(folder); err != nil || len(remaining) > 0 {
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
			defer os.Remove(log) // the next case begins with an empty log
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
		_, _ = cmd.CombinedOutput() // fails, because there is no program
		if _, err := os.Stat(log); err == nil {
			t.Error("a daemon was started without ranks")
		}
	})
}

// TestBrokenDaemonIsIgnored checks that ranks share a GPU in turns if the daemon cannot start.
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

// TestSignalStopsDaemonAndRanks checks that a command that is interrupted by a signal stops its
// ranks and the daemon before it exits.
func TestSignalStopsDaemonAndRanks(t *testing.T) {
	path := symmemBinary(t) // build before the environment changes
	folder := useOneSharedGPU(t)
	log := mpstest.Install(t)
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			defer os.Remove(log) // the next case begins with an empty log
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

			_ = cmd.Wait() // the exit code is checked below
			if code, want := cmd.ProcessState.ExitCode(), 128+int(signal); code != want {
				t.Errorf("exit code %d, want %d", code, want)
			}

			checkCleanup(t, log, folder)
		})
	}
}

// TestEnvironmentOfRanksThatShareGPUs checks the variables that limit what each rank uses of a GPU.
// A rank gets its share, rounded down, of 100 % of the threads. It also gets its share of 64
// hardware queues (connections), but at most 32.
func TestEnvironmentOfRanksThatShareGPUs(t *testing.T) {
	withService := doctor.GPUSharing{IsServiceRunning: true} // the Multi-Process Service
	for name, test := range map[string]struct {
		sharing gpuSharing
		want    []string // sorted
	}{
		"4 ranks on 1 GPU": {
			gpuSharing{ranks: 4, gpus: 1, status: withService},
			[]string{
				"CUDA_DEVICE_MAX_CONNECTIONS=16", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25", "HOME=/",
				"NCCL_MAX_CTAS=4", "NCCL_MAX_NCHANNELS=4", "NCCL_MULTI_RANK_GPU_ENABLE=1",
			},
		},
		"8 ranks on 1 GPU": {
			gpuSharing{ranks: 8, gpus: 1, status: withService},
			[]string{
				"CUDA_DEVICE_MAX_CONNECTIONS=8", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=12", "HOME=/",
				"NCCL_MAX_CTAS=4", "NCCL_MAX_NCHANNELS=4", "NCCL_MULTI_RANK_GPU_ENABLE=1",
			},
		},
		"5 ranks on 4 GPUs, at most 2 on each": {
			gpuSharing{ranks: 5, gpus: 4, status: withService},
			[]string{
				"CUDA_DEVICE_MAX_CONNECTIONS=32", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50", "HOME=/",
				"NCCL_MAX_CTAS=4", "NCCL_MAX_NCHANNELS=4", "NCCL_MULTI_RANK_GPU_ENABLE=1",
			},
		},
		"without the service, with variables of the user": {
			// The second variable is empty, so it is replaced.
			gpuSharing{ranks: 2, gpus: 1, userEnv: []string{"NCCL_MAX_CTAS=9", "NCCL_MAX_NCHANNELS="}},
			[]string{
				"CUDA_DEVICE_MAX_CONNECTIONS=32", "HOME=/", "NCCL_MAX_CTAS=9", "NCCL_MAX_NCHANNELS=4",
				"NCCL_MULTI_RANK_GPU_ENABLE=1",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			env := []string{
				"HOME=/", "CUDA_DEVICE_MAX_CONNECTIONS=32", "NCCL_MAX_CTAS=9", "NCCL_MAX_NCHANNELS=",
			}
			got := test.sharing.addSettings(env, nil) // nil means that no daemon was started
			slices.Sort(got)
			if !slices.Equal(got, test.want) {
				t.Errorf("environment %q, want %q", got, test.want)
			}
		})
	}
}
