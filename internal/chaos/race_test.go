//go:build race

package chaos

func init() { racing = true }
