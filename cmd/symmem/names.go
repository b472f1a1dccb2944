package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// name is a flag whose value is one of several names.
type name[T fmt.Stringer] struct {
	value *T
	parse func(string) (T, error)
}

// named makes the flag of a value that begins with its default.
func named[T fmt.Stringer](value *T, parse func(string) (T, error)) *name[T] {
	return &name[T]{value, parse}
}

// String is the name of the value.
func (n *name[T]) String() string { return (*n.value).String() }

// Set reads a name.
func (n *name[T]) Set(text string) (err error) {
	*n.value, err = n.parse(text)
	return err
}

// Type is what help calls the value.
func (n *name[T]) Type() string { return "name" }

// complete offers the values of a flag to the shell. The flag exists, so it cannot fail.
func complete(cmd *cobra.Command, flag string, values ...string) {
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag,
		cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
}
