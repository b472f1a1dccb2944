package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"symmem/driver"
	"symmem/internal/live"
)

const statusLong = `status prints what the ranks of your jobs on this machine are doing:
which ranks wait for which others, since when and in which call, and which groups have failed. Start
the ranks with SYMMEM_HTTP, Options.HTTP or symmem launch --http. The value "unix" is enough for
this command, which reads Unix sockets.

If a rank does not answer within 3 seconds, its process is probably suspended, and status prints
what the other ranks know about this rank. Without a FOLDER, status prints all jobs in the temporary
folder (TMPDIR). If the ranks use another temporary folder, pass the folder of the job, which the
ranks log.

--json prints an object with the list "jobs". Its fields are listed in docs/reference/live.md.

Exit codes: 0 status found ranks; 2 it found none.`

const statusExample = `  symmem status
  symmem status --json | jq '.jobs[].ranks[].waits'`

// jobStatus is the status of a job's ranks on this machine. Its text is, for example:
//
//	job run5: 2 ranks on this machine, http://127.0.0.1:8080/?token=...
//	rank 0, process 7: waits
//	  for rank 1 in AllReduce 12 of group world, since 12:00:01 (8.5s)
//	    rank 1: in no call of this group
//	rank 1: no answer for 3s: its process may be stopped
//	  group world: in no call of this group
//
// The last line is what rank 0 knows about rank 1.
type jobStatus struct {
	Folder string `json:"folder"`
	URL    string `json:"url,omitempty"` // web page, including the token; "" if none is served
	live.Machine
}

type statusReport struct {
	Jobs []jobStatus `json:"jobs"`
}

func newStatusCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "status [FOLDER]",
		Short:   "Print which ranks of running jobs wait for which others",
		Long:    statusLong,
		Example: statusExample,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return printStatus(cmd, args, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// printStatus prints the status of the jobs in folders, or of all jobs if there are no folders.
func printStatus(cmd *cobra.Command, folders []string, asJSON bool) error {
	jobs, err := readStatus(cmd.Context(), folders)
	if err != nil {
		return exitWith(exitIncomplete, err)
	}

	if len(jobs) == 0 {
		searchedFolder := live.Root()
		if len(folders) > 0 {
			searchedFolder = folders[0] // the command takes at most one
		}

		return exitWith(exitIncomplete, fmt.Errorf("no rank serves its status in %s: start ranks with "+
			"SYMMEM_HTTP=unix", searchedFolder))
	}

	return writeReport(cmd.OutOrStdout(), asJSON, &statusReport{Jobs: jobs})
}

// readStatus returns the status of the jobs in folders, or of all jobs of this user if there are no
// folders. It omits jobs that have ended.
func readStatus(ctx context.Context, folders []string) ([]jobStatus, error) {
	if len(folders) == 0 {
		allFolders, err := live.Jobs(live.Root())
		if err != nil {
			return nil, err
		}

		folders = allFolders
	}

	jobs := []jobStatus{} // encoded as [] in JSON, unlike nil
	for _, folder := range folders {
		machine, err := live.Read(ctx, folder)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the job has ended
		}

		if err != nil {
			return nil, err
		}

		j := newJobStatus(folder, machine)
		if !j.hasEnded() {
			jobs = append(jobs, j)
		}
	}

	return jobs, nil
}

// newJobStatus adds the job's URL to the answers of its ranks.
func newJobStatus(folder string, machine live.Machine) jobStatus {
	j := jobStatus{Folder: folder, Machine: machine}
	address := ""
	for i := range machine.Ranks {
		address = cmp.Or(machine.Ranks[i].Address, address) // the last rank with a page
	}

	if address == "" {
		return j
	}

	token, err := live.Token(folder)
	canOpenPage := err == nil
	if canOpenPage {
		j.URL = "http://" + address + "/?token=" + token
	}

	return j
}

func (j *jobStatus) hasEnded() bool {
	for i := range j.Ranks {
		if j.Ranks[i].Error != live.ErrorEnded {
			return false
		}
	}

	return true
}

// WriteText writes the status of each job as text.
func (s *statusReport) WriteText(w io.Writer) error {
	for i := range s.Jobs {
		if _, err := io.WriteString(w, s.Jobs[i].formatText()); err != nil {
			return err
		}
	}

	return nil
}

// formatText replaces unprintable characters, because the names of groups may contain them.
func (j *jobStatus) formatText() string {
	var b strings.Builder
	fmt.Fprintf(&b, "job %s: %d ranks on this machine", filepath.Base(j.Folder), len(j.Ranks))
	if j.URL != "" {
		fmt.Fprintf(&b, ", %s", j.URL)
	}

	b.WriteString("\n")
	for i := range j.Ranks {
		j.describeRank(&b, &j.Ranks[i])
	}

	replaceUnprintable := func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}

		return '?'
	}
	return strings.Map(replaceUnprintable, b.String())
}

// describeRank writes what a rank is doing or, without an answer, what other ranks know about it.
func (j *jobStatus) describeRank(b *strings.Builder, rank *live.Snapshot) {
	if rank.Error != "" {
		fmt.Fprintf(b, "rank %d: %s\n", rank.Rank, rank.Error)
		activities := j.activityByGroup(rank.Rank)
		for _, group := range slices.Sorted(maps.Keys(activities)) {
			fmt.Fprintf(b, "  group %s: %s\n", group, activities[group])
		}

		return
	}

	state := "does not wait for another rank"
	if len(rank.Waits) > 0 {
		state = "waits"
	}

	fmt.Fprintf(b, "rank %d, process %d: %s\n", rank.Rank, rank.Process, state)
	for _, wait := range rank.Waits {
		start := wait.Since.Local().Format(time.TimeOnly)
		duration := time.Duration(wait.Seconds * float64(time.Second)).Round(time.Millisecond)
		fmt.Fprintf(b, "  for %s in %s, since %s (%v)\n", driver.Ranks(wait.Ranks), wait.InCall,
			start, duration)
		for _, awaited := range slices.Sorted(maps.Keys(wait.Activity)) {
			fmt.Fprintf(b, "    rank %d: %s\n", awaited, wait.Activity[awaited])
		}
	}

	for i := range rank.Groups {
		g := &rank.Groups[i]
		hasFailed := g.State != "open" // "failing" or "failed"
		if hasFailed {
			fault := cmp.Or(g.Fault, "its ranks are determining the cause")
			fmt.Fprintf(b, "  group %s has failed: %s\n", g.ID, fault)
		}
	}
}

// activityByGroup returns what other ranks know about a rank's activity, keyed by group ID.
func (j *jobStatus) activityByGroup(rank int) map[string]string {
	activities := map[string]string{}
	for i := range j.Ranks {
		other := &j.Ranks[i]
		for k := range other.Groups {
			g := &other.Groups[k]
			if activity, ok := g.Activity[rank]; ok {
				activities[g.ID] = activity
			}
		}
	}

	return activities
}
