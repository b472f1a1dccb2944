package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// scripts/release.sh sets these constants in published sources, and pyproject.toml reads release.
const (
	release = "0.0.0-dev" // version without the prefix "v"
	commit  = ""          // hash, possibly with the suffix "-modified"; "" if not published
)

type buildInfo struct {
	Version    string `json:"version"`
	Revision   string `json:"revision"` // hash of the commit, or "" if unknown
	IsModified bool   `json:"modified"` // whether the sources differed from the commit
	GoVersion  string `json:"go"`
	Platform   string `json:"platform"`
}

const versionExample = `  symmem version
  symmem version --json`

func newVersionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version, the commit and the version of Go",
		Example: versionExample,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return writeVersion(cmd.OutOrStdout(), currentBuild(), asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

func writeVersion(w io.Writer, b buildInfo, asJSON bool) error {
	if asJSON {
		return writeJSON(w, b)
	}

	_, err := fmt.Fprintln(w, versionText(b))
	return err
}

// versionText returns a line such as "symmem v1.2.3 (0123456789ab), go1.26.0, linux/amd64".
func versionText(b buildInfo) string {
	text := "symmem " + b.Version
	if b.Revision != "" {
		const maxShownLength = 12
		shownLength := min(len(b.Revision), maxShownLength)
		text += " (" + b.Revision[:shownLength]
		if b.IsModified {
			text += ", modified"
		}

		text += ")"
	}

	return fmt.Sprintf("%s, %s, %s", text, b.GoVersion, b.Platform)
}

// currentBuild describes the build of this program.
func currentBuild() buildInfo {
	info, isRecorded := debug.ReadBuildInfo()
	if !isRecorded { // the program was built without modules
		info = &debug.BuildInfo{}
	}

	return buildOf(release, commit, info)
}

// buildOf describes a published build by the first two arguments, and other builds by info from the
// go command.
func buildOf(publishedVersion, publishedCommit string, info *debug.BuildInfo) buildInfo {
	b := buildInfo{
		Version: cmp.Or(info.Main.Version, "(devel)"), GoVersion: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	isPublished := publishedCommit != ""
	if isPublished {
		b.Version = "v" + publishedVersion
		b.Revision, b.IsModified = strings.CutSuffix(publishedCommit, "-modified")
		return b
	}

	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.IsModified = s.Value == "true"
		}
	}

	return b
}
