import click
from webhook.commands.serve import serve
main = click.Group("gpu-admission", commands={"serve": serve})
