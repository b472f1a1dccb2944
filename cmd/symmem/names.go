package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// name implements a flag whose value is one of several names.
type name[T fmt.Stringer] struct {
	value *T
	parse func(string) (T, error)
}

// newName returns a flag for *value. The default is the current value.
func newName[T fmt.Stringer](value *T, parse func(string) (T, error)) *name[T] {
	return &name[T]{value, parse}
}

// String returns the name of the value.
func (n *name[T]) String() string { return (*n.value).String() }

// Set parses a name.
func (n *name[T]) Set(text string) (err error) {
	*n.value, err = n.parse(text)
	return err
}

// Type returns the placeholder for the value in help texts.
func (n *name[T]) Type() string { return "name" }

// complete offers values of a flag for shell completion. The flag must exist.
func complete(cmd *cobra.Command, flag string, values ...string) {
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag,
		cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
}
