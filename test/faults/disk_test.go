package faults

const mortal = "as-mortal"

func asMortal(args []string) error { return nil }
