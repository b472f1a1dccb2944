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

// scripts/release.sh sets these constants in published sources. pyproject.toml reads the version
// from this file.
const (
	release = "0.0.0-dev"
	commit  = ""
)

// build identifies a build of the command.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Modified bool   `json:"modified"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
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
			return writeVersion(cmd.OutOrStdout(), thisBuild(), asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

func writeVersion(w io.Writer, b build, asJSON bool) error {
	if asJSON {
		return writeJSON(w, b)
	}
	_, err := fmt.Fprintln(w, versionText(b))
	return err
}

func versionText(b build) string {
	text := "symmem " + b.Version
	if b.Revision != "" {
		text += " (" + b.Revision[:min(len(b.Revision), 12)]
		if b.Modified {
			text += ", modified"
		}
		text += ")"
	}
	return fmt.Sprintf("%s, %s, %s", text, b.Go, b.Platform)
}

// thisBuild identifies the running command. In a release, it uses the constants release and commit;
// otherwise, it uses the build information recorded by the go command.
func thisBuild() build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return buildOf(release, commit, info)
}

func buildOf(release, commit string, info *debug.BuildInfo) build {
	b := build{
		Version: cmp.Or(info.Main.Version, "(devel)"), Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	if commit != "" {
		b.Version = "v" + release
		b.Revision, b.Modified = strings.CutSuffix(commit, "-modified")
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}
