package chaos

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// remainsTime is how long what has ended may take to go.
const remainsTime = time.Second

// remains lists what a job has left behind: processes, files in its folder for temporary files, and
// files of symmem's in shared memory that were not there before.
func (j *job) remains(before []string) (left string) {
	end := time.Now().Add(remainsTime)
	for {
		if left = j.look(before); left == "" || time.Now().After(end) {
			return left
		}
		<-time.After(remainsTime / 20)
	}
}

func (j *job) look(before []string) string {
	var left []string
	processes, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return err.Error()
	}
	for _, p := range processes {
		// One that has ended meanwhile, or is another user's, cannot be read.
		text, err := os.ReadFile(p)
		if err == nil && bytes.Contains(text, []byte(jobVariable+"="+j.id)) {
			left = append(left, "process "+filepath.Base(filepath.Dir(p)))
		}
	}
	files, err := os.ReadDir(j.folder)
	if err != nil {
		return err.Error()
	}
	for _, f := range files {
		left = append(left, "file "+f.Name())
	}
	for _, name := range sharedMemory() {
		if !slices.Contains(before, name) {
			left = append(left, fmt.Sprintf("%s in shared memory", name))
		}
	}
	sockets, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return err.Error()
	}
	if strings.Contains(string(sockets), j.store()) {
		left = append(left, "socket "+j.store())
	}
	return strings.Join(left, ", ")
}

// sharedMemory lists symmem's files in shared memory.
func sharedMemory() (names []string) {
	// Without such a folder there are none.
	entries, _ := os.ReadDir("/dev/shm")
	for _, e := range entries {
		if strings.Contains(e.Name(), "symmem") {
			names = append(names, e.Name())
		}
	}
	return names
}
